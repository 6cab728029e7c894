/* SPDX-License-Identifier: Apache-2.0 */
/* OPEN and RELEASE: the kernel reads shards itself, from a plain file.
 *
 *   (none) --open--> TRYING --+--> PASSTHROUGH (id, lease) --+
 *                             +--> CACHED -------------------+
 *      ^                                                     |
 *      +------------------ last release ---------------------+
 *
 *  1 an inode is in one state from its first open to its last release: the
 *    kernel refuses passthrough and page cache at the same time (EIO)
 *  2 a backing id is registered once an inode and lives as long as its
 *    lease; both end at the last release
 *  3 where no open needs an answer (small files, or passthrough that is not
 *    allowed), ENOSYS tells the kernel never to ask again
 *
 * @lock guards the table. A node in TRYING belongs to the worker that tries;
 * further opens wait for it in other workers. */
#include "cachefs/fs_internal.h"

#include <linux/fuse.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>

#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
#define HAVE_PASSTHROUGH 1
#else
#define HAVE_PASSTHROUGH 0
#endif

#define BUCKETS 1024

enum plain_state {
        PLAIN_TRYING,
        PLAIN_PASSTHROUGH,
        PLAIN_CACHED,
};

struct plain_node {
        struct plain_node *next;
        uint64_t opens, lease;
        uint32_t entry;
        int backing_id;
        enum plain_state state;
};

struct sheaf_plain_table {
        struct sheaf_fs *fs;
        pthread_mutex_t lock;
        pthread_cond_t tried;
        _Atomic bool refused; /* the kernel lets us register nothing */
        _Atomic bool worked;  /* it did once */
        struct plain_node *bucket[BUCKETS];
};

int sheaf_plain_table_new(
        struct sheaf_fs *fs, struct sheaf_plain_table **ret_table)
{
        struct sheaf_plain_table *table =
                sheaf_new(struct sheaf_plain_table, 1);

        if (!table)
                return -ENOMEM;
        pthread_mutex_init(&table->lock, NULL);
        pthread_cond_init(&table->tried, NULL);
        table->fs = fs;
        *ret_table = table;
        return 0;
}

void sheaf_plain_table_free(struct sheaf_plain_table *table)
{
        if (!table)
                return;
        for (size_t i = 0; i < BUCKETS; i++)
                while (table->bucket[i]) {
                        struct plain_node *node = table->bucket[i];

                        table->bucket[i] = node->next;
                        if (node->state == PLAIN_PASSTHROUGH)
                                table->fs->source.ops->close_plain(
                                        table->fs->source.arg, node->lease);
                        free(node);
                }
        pthread_cond_destroy(&table->tried);
        pthread_mutex_destroy(&table->lock);
        free(table);
}

bool sheaf_plain_works(const struct sheaf_plain_table *table)
{
        return table && atomic_load(&table->worked);
}

#if HAVE_PASSTHROUGH
bool sheaf_plain_negotiate(struct fuse_conn_info *conn)
{
        if (!(conn->capable & FUSE_CAP_PASSTHROUGH))
                return false;
        conn->want |= FUSE_CAP_PASSTHROUGH;
        /* libfuse adds one; 2 would switch passthrough off */
        conn->max_backing_stack_depth = 1;
        return true;
}

static int register_backing(fuse_req_t req, int fd)
{
        return fuse_passthrough_open(req, fd);
}

/* Not by fuse_passthrough_close(), which wants a live request: an open that
 * was given up has none. An id that is unknown by now is gone anyway. */
static void unregister_backing(struct sheaf_fs *fs, int id)
{
        uint32_t backing_id = (uint32_t)id;

        ioctl(fuse_session_fd(fs->session), FUSE_DEV_IOC_BACKING_CLOSE,
                &backing_id);
}

static void set_backing(struct fuse_file_info *fi, int id)
{
        fi->backing_id = id;
}
#else
bool sheaf_plain_negotiate(struct fuse_conn_info *conn)
{
        (void)conn;
        return false;
}

static int register_backing(fuse_req_t req, int fd)
{
        (void)req;
        (void)fd;
        return 0;
}

static void unregister_backing(struct sheaf_fs *fs, int id)
{
        (void)fs;
        (void)id;
}

static void set_backing(struct fuse_file_info *fi, int id)
{
        (void)fi;
        (void)id;
}
#endif

static struct plain_node **find(struct sheaf_plain_table *table, uint32_t entry)
{
        struct plain_node **at = &table->bucket[entry % BUCKETS];

        while (*at && (*at)->entry != entry)
                at = &(*at)->next;
        return at;
}

/* Counts one close of @entry; the last one ends its state. May wait for the
 * daemon, outside the lock. */
static void put(struct sheaf_plain_table *table, uint32_t entry)
{
        const struct sheaf_source *source = &table->fs->source;
        struct plain_node **at, *node;

        pthread_mutex_lock(&table->lock);
        at = find(table, entry);
        node = *at;
        if (!node || --node->opens) {
                pthread_mutex_unlock(&table->lock);
                return;
        }
        *at = node->next;
        pthread_mutex_unlock(&table->lock);
        if (node->state == PLAIN_PASSTHROUGH) {
                unregister_backing(table->fs, node->backing_id);
                source->ops->close_plain(source->arg, node->lease);
        }
        free(node);
}

/* Registers the plain file of @node, if there is one. Without the lock. */
static enum plain_state try_plain(struct sheaf_plain_table *table,
        fuse_req_t req, struct plain_node *node)
{
        const struct sheaf_source *source = &table->fs->source;
        sheaf_autofd int fd = -1;
        uint64_t lease;

        if (source->listing->entries[node->entry].size_bytes <=
                        SHEAF_TREE_SHARD_BYTES ||
                atomic_load(&table->refused))
                return PLAIN_CACHED;
        if (source->ops->open_plain(source->arg, node->entry, &fd, &lease) < 0)
                return PLAIN_CACHED;
        node->backing_id = register_backing(req, fd);
        if (node->backing_id <= 0) {
                source->ops->close_plain(source->arg, lease);
                if (!atomic_load(&table->worked) &&
                        !atomic_exchange(&table->refused, true))
                        sheaf_fs_log(table->fs,
                                "passthrough refused by the "
                                "kernel (it needs CAP_SYS_ADMIN): large files "
                                "are read through the page cache");
                return PLAIN_CACHED;
        }
        node->lease = lease;
        atomic_store(&table->worked, true);
        return PLAIN_PASSTHROUGH;
}

struct open_ask {
        struct sheaf_task task;
        fuse_req_t req;
        uint32_t entry;
        struct fuse_file_info fi;
};

static int get(struct sheaf_plain_table *table, fuse_req_t req, uint32_t entry,
        struct fuse_file_info *fi)
{
        struct plain_node *node;
        enum plain_state state;

        pthread_mutex_lock(&table->lock);
        node = *find(table, entry);
        if (!node) {
                node = sheaf_new(struct plain_node, 1);
                if (!node) {
                        pthread_mutex_unlock(&table->lock);
                        return -ENOMEM;
                }
                node->entry = entry;
                node->opens = 1;
                node->state = PLAIN_TRYING;
                node->next = table->bucket[entry % BUCKETS];
                table->bucket[entry % BUCKETS] = node;
                pthread_mutex_unlock(&table->lock);
                state = try_plain(table, req, node);
                pthread_mutex_lock(&table->lock);
                node->state = state;
                pthread_cond_broadcast(&table->tried);
        } else {
                node->opens++;
                while (node->state == PLAIN_TRYING)
                        pthread_cond_wait(&table->tried, &table->lock);
        }
        if (node->state == PLAIN_PASSTHROUGH)
                set_backing(fi, node->backing_id);
        else
                fi->keep_cache = 1;
        pthread_mutex_unlock(&table->lock);
        return 0;
}

static void run_open(struct sheaf_task *task)
{
        struct open_ask *ask = (struct open_ask *)task;
        struct sheaf_fs *fs = sheaf_fs_of(ask->req);
        struct sheaf_plain_table *table = fs->plain;
        fuse_req_t req = ask->req;
        int rc = get(table, req, ask->entry, &ask->fi);

        if (rc < 0) {
                fuse_reply_err(req, -rc);
                free(ask);
                return;
        }
        if (!ask->fi.keep_cache)
                sheaf_source_count(
                        &fs->source, SHEAF_METER_OP_PASSTHROUGH_OPENS, 1);
        /* no RELEASE follows an open that the kernel has given up */
        if (fuse_reply_open(req, &ask->fi) < 0)
                put(table, ask->entry);
        free(ask);
}

void sheaf_fs_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
        struct sheaf_fs *fs = sheaf_fs_of(req);
        struct open_ask *ask = NULL;
        uint32_t entry;
        int rc;

        if (!fs->plain || (atomic_load(&fs->plain->refused) &&
                                  !atomic_load(&fs->plain->worked))) {
                fuse_reply_err(req, ENOSYS);
                return;
        }
        rc = sheaf_tree_entry(&fs->source, ino, &entry);
        if (!rc) {
                ask = sheaf_new(struct open_ask, 1);
                rc = ask ? 0 : -ENOMEM;
        }
        if (rc < 0) {
                fuse_reply_err(req, -rc);
                return;
        }
        ask->task.run = run_open;
        ask->req = req;
        ask->entry = entry;
        ask->fi = *fi;
        rc = sheaf_pool_submit(fs->pool, &ask->task);
        if (rc < 0) {
                free(ask);
                fuse_reply_err(req, -rc);
        }
}

/* Nobody waits for the answer to a RELEASE, but for the lease somebody may:
 * a worker gives it back. A new open that comes first keeps the state. */
static void run_release(struct sheaf_task *task)
{
        struct open_ask *done = (struct open_ask *)task;

        put(sheaf_fs_of(done->req)->plain, done->entry);
        fuse_reply_err(done->req, 0);
        free(done);
}

void sheaf_fs_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
        struct sheaf_fs *fs = sheaf_fs_of(req);
        struct open_ask *done;
        uint32_t entry;

        (void)fi;
        if (!fs->plain || sheaf_tree_entry(&fs->source, ino, &entry) < 0) {
                fuse_reply_err(req, 0);
                return;
        }
        done = sheaf_new(struct open_ask, 1);
        if (!done) {
                put(fs->plain, entry);
                fuse_reply_err(req, 0);
                return;
        }
        done->task.run = run_release;
        done->req = req;
        done->entry = entry;
        if (sheaf_pool_submit(fs->pool, &done->task) < 0)
                run_release(&done->task);
}
