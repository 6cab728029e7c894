/* SPDX-License-Identifier: Apache-2.0 */
/* One function a request; each answers at once or begins a call. */
#ifndef SHEAF_DAEMON_VERBS_H
#define SHEAF_DAEMON_VERBS_H

#include "daemon/server.h"

typedef void sheaf_verb(struct sheaf_conn *conn, struct sheaf_wire_msg *msg);

/* session.c */
sheaf_verb sheaf_verb_hello, sheaf_verb_open_dataset, sheaf_verb_close_dataset,
        sheaf_verb_unmapped, sheaf_verb_pin_grant, sheaf_verb_fork_note,
        sheaf_verb_cancel;
/* fetch.c */
sheaf_verb sheaf_verb_fetch;
/* bind.c */
sheaf_verb sheaf_verb_bind;
/* job.c */
sheaf_verb sheaf_verb_list_jobs, sheaf_verb_remove_job;
/* group.c */
sheaf_verb sheaf_verb_join_group, sheaf_verb_begin_group,
        sheaf_verb_lease_batch, sheaf_verb_offer_batch, sheaf_verb_fail_batch,
        sheaf_verb_take_batch, sheaf_verb_leave_group, sheaf_verb_group_stats,
        sheaf_verb_list_groups;
/* plain.c */
sheaf_verb sheaf_verb_open_plain, sheaf_verb_close_plain;
/* add.c */
sheaf_verb sheaf_verb_add_dataset, sheaf_verb_update_dataset;
/* datasets.c */
sheaf_verb sheaf_verb_list_datasets, sheaf_verb_remove_dataset,
        sheaf_verb_share, sheaf_verb_sync;
/* warmup.c: everything that walks chunks through the conductor */
sheaf_verb sheaf_verb_warmup, sheaf_verb_seal;
/* evict.c: cached state of paths */
sheaf_verb sheaf_verb_evict, sheaf_verb_cached_query, sheaf_verb_get_digest;
/* verify.c */
sheaf_verb sheaf_verb_verify;
/* stats.c */
sheaf_verb sheaf_verb_get_stats;
/* status.c */
sheaf_verb sheaf_verb_get_status;
/* grant.c */
sheaf_verb sheaf_verb_grant_socket, sheaf_verb_revoke_grant,
        sheaf_verb_list_grants;

/* Root and the daemon's user. */
bool sheaf_conn_sees_all(const struct sheaf_conn *conn);
/* Whether @conn may know of the client @other. */
bool sheaf_conn_may_see(
        const struct sheaf_conn *conn, const struct sheaf_conn *other);
/* The daemon's own figures, as far as @conn may see them, in @ret_space: free
 * it after use. */
SHEAF_MUST_CHECK int sheaf_stats_node(struct sheaf_conn *conn, void **ret_space,
        Sheaf__Metric ***ret_metrics, size_t *ret_count);

/* What --share says. 0; -EINVAL; -ENOENT no such group. */
SHEAF_MUST_CHECK int sheaf_share_parse(
        const char *text, enum sheaf_share *ret_kind, gid_t *ret_gid);
/* Answers what sheaf_share_parse made of @text. */
void sheaf_share_refuse(
        struct sheaf_conn *conn, uint64_t id, int rc, const char *text);
/* Judges whether those whom it names could read the origin's root, the
 * message's first descriptor, themselves; then calls @next, later, with the
 * message, which is taken over. Failures are answered. */
typedef void sheaf_judged(
        struct sheaf_conn *conn, struct sheaf_wire_msg *msg, bool covered);
void sheaf_share_judge(struct sheaf_conn *conn, struct sheaf_wire_msg *msg,
        enum sheaf_share kind, gid_t gid, sheaf_judged *next);
/* Whether the domain has all of @bits (r 4, x 1) of a mode. A member of the
 * group is judged by the group's bits alone, as the kernel does. */
bool sheaf_share_mode_allows(mode_t mode, gid_t owning, enum sheaf_share kind,
        gid_t gid, mode_t bits);
/* How many files and directories of the listing their modes deny to those;
 * @ret_first is set when there is one. */
uint64_t sheaf_share_private(const struct sheaf_listing *listing,
        enum sheaf_share kind, gid_t gid, uint32_t *ret_first);
/* Says so in words. */
void sheaf_share_private_text(const struct sheaf_listing *listing,
        uint64_t count, uint32_t first, char *buf, size_t cap_bytes);

/* Fills @info with what may be told of a dataset; strings are static or
 * point into @space. */
struct sheaf_info_space {
        char owner[64], share[80], domain[64], digest[80];
};
void sheaf_dataset_fill_info(struct sheaf_reg_dataset *dataset,
        struct sheaf_reg_version *version, Sheaf__DatasetInfo *info,
        struct sheaf_info_space *space);

#endif
