/* SPDX-License-Identifier: Apache-2.0 */
/* What all suites of hostile clients share: a system with a dataset that is
 * open to all, honest clients beside the attack, and what must be as before
 * when it is over. */
#ifndef SHEAF_TESTS_FLOW_HOSTILE_H
#define SHEAF_TESTS_FLOW_HOSTILE_H

#include "tests/flow/peer.h"

#define HOSTILE_FILES    20
#define HOSTILE_SIZE     50000
#define HOSTILE_LARGE_ID 500
#define HOSTILE_LARGE    9000001
#define HOSTILE_UID      4001

/* .init of a suite; .fini is flow_fini. 64 MiB of memory, a deadline of 8 s,
 * dataset "data" with files f0 ... and "large", shared with all. Then an honest
 * reader begins, whose speed without an attack is taken first: it reads and
 * checks the small files, in place, and connects anew, over and over. */
void hostile_begin(void);
/* The last of each test, when its peers are gone. The reader had right bytes
 * only, and went on; how fast, compared with before, is printed as a line
 * "FIGURE: hostile.TEST@suffix ...". Clients, pins, flights, descriptors and
 * memory of the daemon are back, its log names no sanitizer, and it stops. Not
 * in .fini, where a failure would not count. */
void hostile_end_as(const char *test, const char *suffix);
#define hostile_end() hostile_end_as(__func__, "")
/* An honest client reads everything: right bytes. */
void hostile_check_others(const char *name);

/* Ends the honest reader, for tests of what nobody holds; no hostile_end()
 * after that. */
void hostile_reader_leave(void);
/* Of requests that make no sense since the test began just these were refused,
 * each is counted, and it is logged once in ten seconds. */
void hostile_refused(unsigned long count);
/* Around the time in which a test has stopped the daemon: the honest reader
 * cannot connect anew. */
void hostile_daemon_away(bool away);
/* The attack has gone on long enough to be measured. */
bool hostile_long_enough(void);

/* ---- who attacks ---- */

enum hostile_who {
        HOSTILE_STRANGER,      /* another uid */
        HOSTILE_NAMESPACE_ROOT /* root in a user namespace of that uid */
};

/* Forks an attacker; in the child returns 0. The child reports by its exit
 * status: 0 all was refused. */
pid_t hostile_fork(enum hostile_who who);
/* Ends the test as skipped where user namespaces are not allowed. */
void hostile_join(pid_t pid, double limit_s);

/* In a child: exits with @code unless @ok. */
#define HOSTILE_NEED(ok, code)                                                 \
        do {                                                                   \
                if (!(ok)) {                                                   \
                        fprintf(stderr, "attacker: line %d: %s: %m\n",         \
                                __LINE__, #ok);                                \
                        _exit(code);                                           \
                }                                                              \
        } while (0)

#endif
