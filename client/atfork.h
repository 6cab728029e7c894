/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions across fork(). */
#ifndef SHEAF_CLIENT_ATFORK_H
#define SHEAF_CLIENT_ATFORK_H

#include "client/session.h"

/* Puts the session on the list that forks go through; the handlers are
 * installed with the first one. 0; -ENOMEM. Any thread. */
SHEAF_MUST_CHECK int sheaf_atfork_register(struct sheaf_session *session);
/* Makes the pipe of the next fork, if there is none. -EMFILE, -ENFILE. Session
 * locked. */
SHEAF_MUST_CHECK int sheaf_atfork_reserve(struct sheaf_session *session);
void sheaf_atfork_release(struct sheaf_session *session);
void sheaf_atfork_unregister(struct sheaf_session *session);

/* A note is on its way, and nobody waits for the answer any more; the answer
 * came; there will be none, as the daemon ended the connection, or @left is
 * false and we did. Session locked. */
void sheaf_atfork_asked(struct sheaf_session *session, uint64_t id);
void sheaf_atfork_answered(
        struct sheaf_session *session, const Sheaf__Envelope *answer);
void sheaf_atfork_hung_up(struct sheaf_session *session, bool left);

#endif
