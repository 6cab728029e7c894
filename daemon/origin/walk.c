/* SPDX-License-Identifier: Apache-2.0 */
/* Listing a tree, inside the reader: breadth first, a directory at a time.
 *
 *  1 every directory is opened beneath the root, without passing links
 *  2 nothing is opened but directories; files are looked at by statx
 *  3 what vanishes before it is looked at is left out; what may not be read,
 *    and a directory that goes before it is opened, is kept with its mode,
 *    counted and named; any other failure ends the walk, so that a listing is
 *    never silently incomplete
 *
 * Threads: one walk, one thread. */
#include "daemon/origin/reader.h"
#include "proto/memfd.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/sysmacros.h>
#include <sys/syscall.h>
#include <time.h>

#define DENTS_BYTES       (256 * SHEAF_KIB)
#define PROGRESS_NS       (100 * SHEAF_NS_PER_MS)
#define RECENT_NS         (2 * SHEAF_NS_PER_SEC)
#define ENTRIES_PER_CHECK 256

struct walker {
        const struct sheaf_reader_walk *walk;
        struct sheaf_reader_summary *summary;
        struct sheaf_listing_builder *builder;
        char *dents; /* raw records of one directory: names point here */
        size_t dents_bytes, dents_cap;
        struct sheaf_listing_item *items;
        size_t item_count, item_cap;
        char *targets; /* of the directory's links, by offset */
        size_t targets_bytes, targets_cap;
        char *path; /* of the directory being listed */
        size_t path_len, path_cap;
        int64_t now_ns, told_ns; /* wall time at the directory; last progress */
        uint64_t seen;
        uid_t uid;
        gid_t gids[256];
        int gid_count;
};

static int64_t clock_ns(clockid_t id)
{
        struct timespec ts;

        clock_gettime(id, &ts);
        return (int64_t)ts.tv_sec * SHEAF_NS_PER_SEC + ts.tv_nsec;
}

static int grow(void *array_p, size_t *cap, size_t need, size_t elem_bytes)
{
        void **array = array_p;
        size_t next = SHEAF_MAX(need, *cap + *cap / 2);
        void *p;

        if (need <= *cap)
                return 0;
        p = reallocarray(*array, next, elem_bytes);
        if (!p)
                return -ENOMEM;
        *array = p;
        *cap = next;
        return 0;
}

/* Remembers the first path of its kind, cut to the room that there is. */
static void name_first(const struct walker *w, const char *name, char out[256])
{
        if (!*out)
                snprintf(out, 256, "%s%s%s", w->path,
                        w->path_len && *name ? "/" : "", name);
}

static int tell(struct walker *w)
{
        int64_t now_ns = clock_ns(CLOCK_MONOTONIC);

        if (atomic_load(w->walk->cancelled))
                return -ECANCELED;
        if (now_ns - w->told_ns >= PROGRESS_NS) {
                w->told_ns = now_ns;
                w->walk->progress(w->walk->arg, w->seen);
        }
        return 0;
}

/* By the mode bits, which is free; only where they say no the kernel is
 * asked, since an access list may say yes. */
static bool may_read(const struct walker *w, int dir, const char *name,
        const struct statx *x)
{
        unsigned int bit = S_IROTH;

        if (x->stx_uid == w->uid)
                bit = S_IRUSR;
        for (int i = 0; bit == S_IROTH && i < w->gid_count; i++) {
                if (w->gids[i] == x->stx_gid)
                        bit = S_IRGRP;
        }
        return x->stx_mode & bit || !faccessat(dir, name, R_OK, AT_EACCESS);
}

static bool recent(const struct walker *w, const struct statx_timestamp *t)
{
        int64_t now_sec = w->now_ns / SHEAF_NS_PER_SEC;
        int64_t ns;

        if (t->tv_sec < now_sec - 4 || t->tv_sec > now_sec + 4)
                return false;
        ns = t->tv_sec * SHEAF_NS_PER_SEC + t->tv_nsec - w->now_ns;
        return ns >= -RECENT_NS && ns <= RECENT_NS;
}

static void fill_item(const struct walker *w, const struct statx *x,
        struct sheaf_listing_item *item)
{
        item->size_bytes = x->stx_size;
        item->origin_ino = x->stx_ino;
        item->origin_dev = makedev(x->stx_dev_major, x->stx_dev_minor);
        item->mtime_sec = x->stx_mtime.tv_sec;
        item->mtime_nsec = x->stx_mtime.tv_nsec;
        item->ctime_sec = x->stx_ctime.tv_sec;
        item->ctime_nsec = x->stx_ctime.tv_nsec;
        item->mode = x->stx_mode;
        item->uid = x->stx_uid;
        item->gid = x->stx_gid;
        item->nlink = x->stx_nlink;
        if (!S_ISDIR(x->stx_mode) &&
                (recent(w, &x->stx_mtime) || recent(w, &x->stx_ctime)))
                item->flags |= SHEAF_LISTING_RECENT;
}

static int look(int dir, const char *name, int flags, struct statx *ret_x)
{
        for (int stale = 0;;) {
                if (!sheaf_again(statx(dir, name, flags | AT_NO_AUTOMOUNT,
                            STATX_BASIC_STATS, ret_x)))
                        return 0;
                if (errno != ESTALE || stale++)
                        return -errno;
        }
}

/* True when the words of @target alone lead above the root. */
static bool leaves_by_words(const struct walker *w, const char *target)
{
        long depth = w->path_len != 0;

        if (*target == '/')
                return true;
        for (const char *p = w->path; *p; p++)
                depth += *p == '/';
        while (*target) {
                size_t len = strcspn(target, "/");

                if (len == 2 && target[0] == '.' && target[1] == '.')
                        depth--;
                else if (len && !(len == 1 && target[0] == '.'))
                        depth++;
                if (depth < 0)
                        return true;
                target += len + (target[len] == '/');
        }
        return false;
}

/* The kernel's word counts, since links on the way may lead out; where it has
 * none (a dangling link, no permission) the words of the target do. */
static bool leaves(const struct walker *w, const char *name, const char *target)
{
        struct open_how how = { .flags = O_PATH | O_CLOEXEC,
                .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS };
        sheaf_autofree char *path = NULL;
        sheaf_autofd int fd = -1;

        if (asprintf(&path, "%s%s%s", w->path, w->path_len ? "/" : "", name) <
                0) {
                path = NULL;
                return leaves_by_words(w, target);
        }
        fd = (int)syscall(SYS_openat2, w->walk->root, path, &how, sizeof(how));
        if (fd >= 0)
                return false;
        return errno == EXDEV || leaves_by_words(w, target);
}

/* Turns the escaping link @item into the file that it leads to, if it does. */
static void follow(struct walker *w, int dir, struct sheaf_listing_item *item)
{
        struct statx x;

        if (look(dir, item->name, 0, &x) || !S_ISREG(x.stx_mode))
                return;
        item->target_len_bytes = 0;
        item->flags = SHEAF_LISTING_FOLLOWED;
        fill_item(w, &x, item);
        w->summary->followed_links++;
        if (!may_read(w, dir, item->name, &x)) {
                w->summary->unreadable_files++;
                name_first(w, item->name, w->summary->first_unreadable);
        }
}

static int take_link(struct walker *w, int dir, struct sheaf_listing_item *item,
        bool *ret_ok)
{
        size_t cap = SHEAF_LISTING_TARGET_MAX + 1;
        ssize_t len;
        char *target;
        int rc = grow(&w->targets, &w->targets_cap, w->targets_bytes + cap, 1);

        if (rc)
                return rc;
        target = w->targets + w->targets_bytes;
        len = readlinkat(dir, item->name, target, cap);
        *ret_ok = len > 0 && (size_t)len < cap;
        if (!*ret_ok)
                return len < 0 && errno != ENOENT && errno != EINVAL ? -errno
                                                                     : 0;
        target[len] = 0;
        /* The room may move: pointers are set when the directory is done. */
        item->target = (const char *)w->targets_bytes;
        item->target_len_bytes = (size_t)len;
        if (leaves(w, item->name, target)) {
                item->flags |= SHEAF_LISTING_ESCAPES;
                w->summary->escaping_links++;
                name_first(w, item->name, w->summary->first_escaping);
                if (w->walk->follow)
                        follow(w, dir, item);
        }
        if (S_ISLNK(item->mode))
                w->targets_bytes += (size_t)len + 1;
        return 0;
}

static void count_unreadable(struct walker *w, const char *name)
{
        w->summary->unreadable_files++;
        name_first(w, name, w->summary->first_unreadable);
}

static int take_entry(struct walker *w, int dir, const char *name)
{
        struct sheaf_listing_item item = { .name = name,
                .name_len_bytes = strlen(name) };
        struct statx x;
        bool ok = true;
        int rc;

        if (!strcmp(name, ".") || !strcmp(name, ".."))
                return 0;
        if (!sheaf_listing_name_valid(name, item.name_len_bytes)) {
                w->summary->skipped_names++;
                return 0;
        }
        rc = look(dir, name, AT_SYMLINK_NOFOLLOW, &x);
        if (rc == -ENOENT)
                return 0;
        if (rc == -EACCES || rc == -EPERM || rc == -EOVERFLOW) {
                count_unreadable(w, name);
                return 0;
        }
        if (rc)
                return rc;
        fill_item(w, &x, &item);
        if (S_ISLNK(x.stx_mode)) {
                rc = take_link(w, dir, &item, &ok);
        } else if (S_ISREG(x.stx_mode)) {
                ok = x.stx_size <= SHEAF_LISTING_FILE_BYTES_MAX;
                if (!ok || !may_read(w, dir, name, &x))
                        count_unreadable(w, name);
        } else if (!S_ISDIR(x.stx_mode)) {
                w->summary->skipped_special++;
                ok = false;
        }
        if (rc || !ok)
                return rc;
        rc = grow(
                &w->items, &w->item_cap, w->item_count + 1, sizeof(*w->items));
        if (!rc)
                w->items[w->item_count++] = item;
        return rc;
}

static int read_dents(struct walker *w, int dir)
{
        w->dents_bytes = 0;
        for (;;) {
                int rc = grow(&w->dents, &w->dents_cap,
                        w->dents_bytes + DENTS_BYTES, 1);
                ssize_t n;

                if (rc)
                        return rc;
                n = sheaf_again(getdents64(
                        dir, w->dents + w->dents_bytes, DENTS_BYTES));
                if (n < 0)
                        return -errno;
                if (!n)
                        return 0;
                w->dents_bytes += (size_t)n;
        }
}

static int compare_items(const void *a_p, const void *b_p)
{
        const struct sheaf_listing_item *a = a_p, *b = b_p;

        return strcmp(a->name, b->name);
}

/* A directory that changes while it is read may name an entry twice. */
static void drop_duplicates(struct walker *w)
{
        size_t kept = 1;

        qsort(w->items, w->item_count, sizeof(*w->items), compare_items);
        for (size_t i = 1; i < w->item_count; i++) {
                if (compare_items(&w->items[i], &w->items[kept - 1]))
                        w->items[kept++] = w->items[i];
        }
        w->item_count = kept;
}

static void count_items(struct walker *w)
{
        for (size_t i = 0; i < w->item_count; i++) {
                mode_t mode = w->items[i].mode;

                w->summary->dirs += S_ISDIR(mode);
                w->summary->files += S_ISREG(mode);
                w->summary->links += S_ISLNK(mode);
        }
}

static int take_dir(struct walker *w, int fd, uint32_t dir)
{
        int rc = read_dents(w, fd);

        w->now_ns = clock_ns(CLOCK_REALTIME);
        w->item_count = 0;
        w->targets_bytes = 0;
        for (size_t at = 0; at < w->dents_bytes && !rc;) {
                const struct dirent64 *dent = (const void *)(w->dents + at);

                at += dent->d_reclen;
                rc = take_entry(w, fd, dent->d_name);
                if (!(++w->seen % ENTRIES_PER_CHECK) && !rc)
                        rc = tell(w);
        }
        if (rc)
                return rc;
        for (size_t i = 0; i < w->item_count; i++) {
                if (S_ISLNK(w->items[i].mode))
                        w->items[i].target =
                                w->targets + (size_t)w->items[i].target;
        }
        rc = sheaf_listing_builder_add_dir(
                w->builder, dir, w->items, w->item_count);
        if (rc == -EEXIST) {
                drop_duplicates(w);
                rc = sheaf_listing_builder_add_dir(
                        w->builder, dir, w->items, w->item_count);
        }
        if (!rc)
                count_items(w);
        return rc;
}

static int set_path(struct walker *w, uint32_t dir)
{
        w->path_len = sheaf_listing_builder_path(
                w->builder, dir, w->path, w->path_cap);
        if (w->path_len < w->path_cap)
                return 0;

        int rc = grow(&w->path, &w->path_cap, w->path_len + 1, 1);

        if (!rc)
                sheaf_listing_builder_path(
                        w->builder, dir, w->path, w->path_cap);
        return rc;
}

static int open_dir(struct walker *w, int *ret_fd)
{
        int rc = -ESTALE;

        for (int i = 0; i < 2 && rc == -ESTALE; i++) {
                rc = sheaf_fault(SHEAF_FAULT_OPEN, w->path, NULL);
                if (!rc)
                        rc = sheaf_reader_open(w->walk->root, w->path,
                                O_RDONLY | O_DIRECTORY, false, ret_fd);
        }
        return rc;
}

static int list_dir(struct walker *w, uint32_t dir)
{
        sheaf_autofd int fd = -1;
        int rc = set_path(w, dir);

        if (!rc)
                rc = tell(w);
        if (!rc)
                rc = open_dir(w, &fd);
        if (!rc)
                rc = take_dir(w, fd, dir);
        if (!rc)
                return 0;
        if (!dir)
                return rc; /* without its root there is no tree */
        switch (rc) {
        case -EACCES:
        case -EPERM:
        case -ENOENT: /* gone since its parent was listed, or it was opened */
        case -ELOOP:  /* another thing now */
        case -EXDEV:
                w->summary->unreadable_dirs++;
                name_first(w, "", w->summary->first_unreadable);
                sheaf_listing_builder_unreadable(w->builder, dir);
                return 0;
        default:
                return rc;
        }
}

static int begin(struct walker *w)
{
        struct sheaf_listing_item root = { .name = "" };
        struct statx x;
        int rc;

        w->uid = geteuid();
        w->gid_count = getgroups(SHEAF_ARRAY_LEN(w->gids) - 1, w->gids);
        if (w->gid_count < 0)
                w->gid_count = 0; /* too many: the kernel is asked instead */
        w->gids[w->gid_count++] = getegid();
        w->path_cap = 4096;
        w->path = malloc(w->path_cap);
        if (!w->path)
                return -ENOMEM;
        rc = look(w->walk->root, "", AT_EMPTY_PATH, &x);
        if (rc)
                return rc;
        if (!S_ISDIR(x.stx_mode))
                return -ENOTDIR;
        fill_item(w, &x, &root);
        root.size_bytes = 0;
        w->summary->dirs = 1;
        return sheaf_listing_builder_new(&root, &w->builder);
}

static int run(struct walker *w, int memfd)
{
        uint64_t listed_ns = (uint64_t)clock_ns(CLOCK_REALTIME);
        uint32_t dir = 0;
        int rc = begin(w);

        while (!rc) {
                rc = list_dir(w, dir);
                dir = sheaf_listing_builder_next_dir(w->builder, dir);
                if (!dir)
                        break;
        }
        if (rc)
                return rc;
        w->walk->progress(w->walk->arg, w->seen);
        sheaf_listing_builder_totals(
                w->builder, &w->summary->bytes, &w->summary->hard_links);
        return sheaf_listing_builder_write(
                w->builder, memfd, w->walk->serial, w->walk->uuid, listed_ns);
}

int sheaf_reader_walk(const struct sheaf_reader_walk *walk,
        struct sheaf_reader_summary *ret_summary, int *ret_memfd)
{
        struct sheaf_reader_summary summary = { 0 };
        struct walker w = { .walk = walk, .summary = &summary };
        sheaf_autofd int memfd = sheaf_memfd("sheaf-listing", 0);
        int rc = memfd < 0 ? memfd : run(&w, memfd);

        sheaf_listing_builder_free(w.builder);
        free(w.dents);
        free(w.items);
        free(w.targets);
        free(w.path);
        *ret_summary = summary;
        if (!rc)
                *ret_memfd = sheaf_steal_fd(&memfd);
        return rc;
}
