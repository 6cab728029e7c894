/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a program to which some system calls are refused:
 *
 *      confine ERRNO NUMBER[,NUMBER...] PROGRAM [ARGUMENT...] */
#include "proto/base.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>

#define CALLS_MAX 16

int main(int argc, char **argv)
{
        struct sock_filter code[2 * CALLS_MAX + 2];
        struct sock_fprog program = { .filter = code };
        char *state = NULL;
        uint32_t refuse;

        if (argc < 4) {
                fprintf(stderr, "confine ERRNO NUMBERS PROGRAM...\n");
                return 2;
        }
        refuse = SECCOMP_RET_ERRNO |
                 ((uint32_t)atoi(argv[1]) & SECCOMP_RET_DATA);
        code[program.len++] = (struct sock_filter)BPF_STMT(
                BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
        for (char *word = strtok_r(argv[2], ",", &state);
                word && program.len < 2 * CALLS_MAX;
                word = strtok_r(NULL, ",", &state)) {
                uint32_t number = (uint32_t)atoi(word);

                code[program.len++] = (struct sock_filter)BPF_JUMP(
                        BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
                code[program.len++] =
                        (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, refuse);
        }
        code[program.len++] = (struct sock_filter)BPF_STMT(
                BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
                prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
                perror("confine");
                return 1;
        }
        execvp(argv[3], argv + 3);
        perror(argv[3]);
        return 127;
}
