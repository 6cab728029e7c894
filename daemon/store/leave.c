/* SPDX-License-Identifier: Apache-2.0 */
/* Plain files that leave. To unlink one may take the file system a second, to
 * close the last descriptor of it no less.
 *
 *  1 they leave one after another, in the order in which they were dropped;
 *    the first of the list is under way on the pool
 *  2 until its names are gone its node is not written anew: such a write
 *    waits, and goes its way again when one has left, to wait once more where
 *    it must; so does one for which there is room when all have left that
 *    nobody has a lease of
 *  3 a stop waits for all of them; after a crash those that had not left are
 *    there as before
 *
 * Threads: loop thread, but for what is said to run on the pool. */
#include "daemon/store/private.h"

static struct sheaf_store *store_of(struct sheaf_disk_io *io)
{
        return (struct sheaf_store *)((char *)io -
                                      offsetof(struct sheaf_store, leave_io));
}

/* pool */
static int leave_work(struct sheaf_disk_io *io)
{
        struct sheaf_store *store = store_of(io);

        sheaf_plain_unlink(store, store->leaving->node);
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(store->leave_fds); i++)
                sheaf_close_p(&store->leave_fds[i]);
        return 0;
}

static void leave_done(struct sheaf_disk_io *io, int rc);

static void leave_next(struct sheaf_store *store)
{
        struct sheaf_plain *plain = store->leaving;
        struct sheaf_file *files[] = { &plain->file, &plain->direct,
                &plain->map };

        /* Others who use it close it. */
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(files); i++)
                store->leave_fds[i] =
                        plain->busy > 1 || plain->leases
                                ? -1
                                : sheaf_file_take(store, files[i]);
        store->leave_io = (struct sheaf_disk_io){
                .op = SHEAF_DISK_WORK, .work = leave_work, .done = leave_done
        };
        sheaf_disk_submit(store->disk, &store->leave_io);
}

static void leave_done(struct sheaf_disk_io *io, int rc)
{
        struct sheaf_store *store = store_of(io);
        struct sheaf_plain *plain = store->leaving;
        struct sheaf_store_gone *gone;

        (void)rc;
        store->leaving = plain->leaves_next;
        store->giving_way -= plain->gives_way;
        if (store->leaving)
                leave_next(store);
        else
                store->leaving_tail = &store->leaving;
        sheaf_plain_leave(store, plain);
        sheaf_append_room(store);
        sheaf_store_defer(store);
        while (!store->leaving && (gone = LIST_FIRST(&store->gone_waits))) {
                LIST_REMOVE(gone, link);
                gone->done(gone);
        }
}

void sheaf_leave_add(struct sheaf_store *store, struct sheaf_plain *plain)
{
        bool first = !store->leaving;

        plain->leaves_next = NULL;
        /* Nobody knows when a lease ends. */
        plain->leaving_bytes =
                plain->leases || plain->gives_way ? 0 : plain->disk_bytes;
        store->leaving_bytes += plain->leaving_bytes;
        *store->leaving_tail = plain;
        store->leaving_tail = &plain->leaves_next;
        if (first)
                leave_next(store);
}

void sheaf_leave_ended(struct sheaf_store *store, struct sheaf_plain *plain)
{
        store->leaving_bytes -= plain->leaving_bytes;
        if (plain->leaving_bytes)
                sheaf_store_defer(store);
}

void sheaf_leave_again(struct sheaf_store *store)
{
        struct sheaf_store_write *write = sheaf_steal(&store->leave_writes);

        while (write) {
                struct sheaf_store_write *next =
                        sheaf_write_private(write)->next;

                sheaf_store_write(store, write);
                write = next;
        }
}

bool sheaf_leave_has(const struct sheaf_store *store, uint64_t node)
{
        const struct sheaf_plain *plain = store->leaving;

        while (plain && plain->node != node)
                plain = plain->leaves_next;
        return plain != NULL;
}

void sheaf_leave_wait(
        struct sheaf_store *store, struct sheaf_store_write *write)
{
        struct sheaf_write_private *p = sheaf_write_private(write);

        p->next = store->leave_writes;
        store->leave_writes = write;
}

bool sheaf_store_gone_wait(
        struct sheaf_store *store, struct sheaf_store_gone *gone)
{
        if (store->leaving)
                LIST_INSERT_HEAD(&store->gone_waits, gone, link);
        return store->leaving;
}

void sheaf_store_gone_cancel(struct sheaf_store_gone *gone)
{
        LIST_REMOVE(gone, link);
}
