/* SPDX-License-Identifier: Apache-2.0 */
/* fake-mount ORIGIN DIR [small|shard|auto] [debug]: mounts a directory
 * through the mount's own code, without a daemon, and prints its counters on
 * SIGUSR1 and at the end. For measuring and for looking. */
#include "cachefs/fs.h"
#include "tests/fakes/fake_dataset.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>

static struct fake_dataset fake;

static void print_counters(void)
{
        static const char *const names[] = {
#define X(upper, lower) #lower,
                SHEAF_METER_OP_LIST(X)
#undef X
        };

        for (size_t i = 0; i < SHEAF_ARRAY_LEN(names); i++)
                if (fake.shared->op[i])
                        printf("%s %llu\n", names[i],
                                (unsigned long long)fake.shared->op[i]);
        printf(".\n");
        fflush(stdout);
}

struct settle_args {
        struct sheaf_fs *fs;
        const char *dir;
};

static void *settle(void *arg)
{
        struct settle_args *args = arg;
        sigset_t set;
        int sig, rc = sheaf_fs_settle(args->fs, args->dir);

        printf("mounted %d\n", rc);
        fflush(stdout);
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        while (!sigwait(&set, &sig))
                print_counters();
        return NULL;
}

int main(int argc, char **argv)
{
        struct sheaf_fs_options options = { 0 };
        struct settle_args args;
        pthread_t thread;
        struct sheaf_fs *fs;
        sigset_t set;
        int rc;

        if (argc < 3 ||
                (argc > 3 && sheaf_tree_kind_parse(argv[3], &options.kind)))
                return 2;
        options.debug = argc > 4;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        pthread_sigmask(SIG_BLOCK, &set, NULL);
        fake_dataset_new(argv[1], &fake);
        if (sheaf_fs_new(&fake.source, &options, &fs) < 0 ||
                sheaf_fs_mount(fs, argv[2]) < 0)
                return 5;
        args.fs = fs;
        args.dir = argv[2];
        if (pthread_create(&thread, NULL, settle, &args))
                return 1;
        rc = sheaf_fs_run(fs);
        print_counters();
        sheaf_fs_free(fs);
        return rc < 0;
}
