/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of datasets that must be durable before they are told.
 *
 *  1 changes are made one after another (sheaf_store_change): each sees what
 *    the one before it left, and takes itself back when it fails
 *  2 what others may see changes when the record is durable, not before; a
 *    dataset is not opened while it moves to another domain
 *  3 a dataset stays in memory while a change of it is under way
 *
 * Threads: loop thread. */
#include "daemon/registry/internal.h"

#include "daemon/log.h"

#include <stdio.h>

struct reg_change {
        struct sheaf_store_change change; /* first */
        struct sheaf_reg_dataset *dataset;
        sheaf_registry_done *done;
        void *arg;
        enum sheaf_share kind;
        gid_t gid;
        /* A seal: until it is durable @was has what to go back to. */
        struct sheaf_reg_version *version;
        struct sheaf_digest root;
        ProtobufCBinaryData was;
        bool marked;
};

void sheaf_registry_key(
        const struct sheaf_reg_dataset *ds, char key[SHEAF_REG_KEY_BYTES])
{
        snprintf(key, SHEAF_REG_KEY_BYTES, "dataset/%016llx",
                (unsigned long long)ds->record->id);
}

int sheaf_registry_pack(
        struct sheaf_reg_dataset *ds, struct sheaf_store_change *change)
{
        bool tried = ds->path_before && !ds->path_settles;
        char key[SHEAF_REG_KEY_BYTES];
        int rc;

        sheaf_registry_key(ds, key);
        if (tried)
                sheaf_registry_swap_path(ds);
        rc = sheaf_store_change_value(change, key,
                sheaf_record__dataset__get_packed_size(ds->record));
        if (!rc)
                sheaf_record__dataset__pack(ds->record, change->value);
        if (tried)
                sheaf_registry_swap_path(ds);
        return rc;
}

/* What could not even be begun is told at once. */
static void change_start(struct sheaf_reg_dataset *ds,
        const struct reg_change *what,
        int (*begin)(struct sheaf_store_change *change),
        void (*done)(struct sheaf_store_change *change, int rc))
{
        struct reg_change *c = sheaf_new(struct reg_change, 1);

        if (!c) {
                if (what->done)
                        what->done(what->arg, -ENOMEM);
                return;
        }
        *c = *what;
        c->dataset = ds;
        c->change.begin = begin;
        c->change.done = done;
        ds->changes++;
        sheaf_store_change(ds->registry->store, &c->change);
}

static void change_end(struct reg_change *c, int rc)
{
        c->dataset->changes--;
        if (c->done)
                c->done(c->arg, rc);
        free(c);
}

static void changed(struct sheaf_store_change *change, int rc)
{
        change_end((struct reg_change *)change, rc);
}

/* ---- the record as it is ---- */

static int save_begin(struct sheaf_store_change *change)
{
        struct sheaf_reg_dataset *ds = ((struct reg_change *)change)->dataset;

        if (ds->removed || TAILQ_EMPTY(&ds->versions))
                return SHEAF_CHANGE_NONE;
        return sheaf_registry_pack(ds, change);
}

void sheaf_registry_record(
        struct sheaf_reg_dataset *dataset, sheaf_registry_done *done, void *arg)
{
        struct reg_change what = { .done = done, .arg = arg };

        change_start(dataset, &what, save_begin, changed);
}

/* ---- sealing ---- */

static int seal_begin(struct sheaf_store_change *change)
{
        struct reg_change *c = (struct reg_change *)change;
        ProtobufCBinaryData *root = &c->version->record->root_digest;
        uint8_t *copy;

        if (c->dataset->removed)
                return -ESTALE;
        copy = malloc(SHEAF_DIGEST_BYTES);
        if (!copy)
                return -ENOMEM;
        memcpy(copy, c->root.bytes, SHEAF_DIGEST_BYTES);
        c->was = *root;
        c->marked = true;
        root->data = copy;
        root->len = SHEAF_DIGEST_BYTES;
        return sheaf_registry_pack(c->dataset, change);
}

static void seal_done(struct sheaf_store_change *change, int rc)
{
        struct reg_change *c = (struct reg_change *)change;
        ProtobufCBinaryData *root = &c->version->record->root_digest;

        if (c->marked && rc) {
                free(root->data);
                *root = c->was;
        } else if (c->marked) {
                free(c->was.data);
        }
        change_end(c, rc);
}

void sheaf_registry_seal(struct sheaf_reg_version *version,
        const struct sheaf_digest *root, sheaf_registry_done *done, void *arg)
{
        struct reg_change what = {
                .version = version, .root = *root, .done = done, .arg = arg
        };

        change_start(version->dataset, &what, seal_begin, seal_done);
}

/* ---- removing ---- */

static int remove_begin(struct sheaf_store_change *change)
{
        struct sheaf_reg_dataset *ds = ((struct reg_change *)change)->dataset;

        if (ds->removed)
                return SHEAF_CHANGE_NONE;
        sheaf_registry_key(ds, change->key);
        return 0;
}

static void removed(struct sheaf_store_change *change, int rc)
{
        struct reg_change *c = (struct reg_change *)change;
        struct sheaf_reg_dataset *ds = c->dataset;

        if (rc == -ENOENT)
                rc = 0;
        if (rc)
                sheaf_log_rc(rc, SHEAF_LOG_ERROR, "dataset record not removed",
                        "name=%s", ds->record->name);
        else
                sheaf_registry_forget(ds);
        change_end(c, rc);
}

void sheaf_registry_remove(
        struct sheaf_reg_dataset *dataset, sheaf_registry_done *done, void *arg)
{
        struct reg_change what = { .done = done, .arg = arg };

        change_start(dataset, &what, remove_begin, removed);
}

static int unrecord_begin(struct sheaf_store_change *change)
{
        sheaf_registry_key(((struct reg_change *)change)->dataset, change->key);
        return 0;
}

void sheaf_registry_unrecord(struct sheaf_reg_dataset *dataset)
{
        struct reg_change what = { 0 };

        sheaf_registry_forget(dataset);
        sheaf_registry_left(dataset);
        change_start(dataset, &what, unrecord_begin, changed);
}

/* ---- sharing ---- */

static int share_begin(struct sheaf_store_change *change)
{
        struct reg_change *c = (struct reg_change *)change;
        SheafRecord__Dataset *record = c->dataset->record;
        uint32_t kind_was = record->share_kind, gid_was = record->share_gid;
        int rc;

        if (c->dataset->removed)
                return -ESTALE;
        if (kind_was == c->kind && gid_was == c->gid)
                return SHEAF_CHANGE_NONE;
        rc = sheaf_registry_vacant(c->dataset);
        if (rc)
                return rc;
        if (TAILQ_EMPTY(&c->dataset->versions)) {
                record->share_kind = c->kind;
                record->share_gid = c->gid;
                return SHEAF_CHANGE_NONE;
        }
        record->share_kind = c->kind;
        record->share_gid = c->gid;
        rc = sheaf_registry_pack(c->dataset, change);
        record->share_kind = kind_was;
        record->share_gid = gid_was;
        c->dataset->moving = !rc;
        return rc;
}

static void shared(struct sheaf_store_change *change, int rc)
{
        struct reg_change *c = (struct reg_change *)change;
        struct sheaf_reg_dataset *ds = c->dataset;

        if (ds->moving && !rc) {
                ds->record->share_kind = c->kind;
                ds->record->share_gid = c->gid;
        }
        if (ds->moving)
                sheaf_registry_moved(ds);
        change_end(c, rc);
}

void sheaf_registry_share(struct sheaf_reg_dataset *dataset,
        enum sheaf_share kind, gid_t gid, sheaf_registry_done *done, void *arg)
{
        struct reg_change what = {
                .kind = kind, .gid = gid, .done = done, .arg = arg
        };

        change_start(dataset, &what, share_begin, shared);
}
