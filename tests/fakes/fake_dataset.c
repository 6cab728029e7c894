/* SPDX-License-Identifier: Apache-2.0 */
/* A source over a directory. Reads go to the files themselves with pread,
 * into private memory that release frees. */
#include "tests/fakes/fake_dataset.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <time.h>

#define REQUIRE(what)                                                          \
        do {                                                                   \
                if (!(what)) {                                                 \
                        fprintf(stderr, "fake_dataset: %s: %s\n", #what,       \
                                strerror(errno));                              \
                        abort();                                               \
                }                                                              \
        } while (0)

static int open_entry(struct fake_dataset *fake, uint32_t entry)
{
        char path[PATH_MAX * 2];
        size_t len = (size_t)snprintf(path, sizeof(path), "%s/", fake->root);

        sheaf_listing_path(
                &fake->listing, entry, path + len, sizeof(path) - len);
        return open(path, O_RDONLY | O_CLOEXEC);
}

static int fake_read(void *arg, uint32_t entry, uint64_t offset_bytes,
        uint64_t len_bytes, bool wait, struct sheaf_view *ret_view)
{
        struct fake_dataset *fake = arg;
        int rc = atomic_load(&fake->shared->fail_rc);
        struct sheaf_view view = { 0 };
        sheaf_autofd int fd = -1;
        size_t half = len_bytes / 2;

        if (!wait && atomic_load(&fake->shared->never_memory))
                return -EAGAIN;
        if (wait) {
                int ms = atomic_load(&fake->shared->delay_ms);
                struct timespec ts = { ms / 1000, ms % 1000 * 1000000L };

                atomic_fetch_add(&fake->shared->reads_waited, 1);
                nanosleep(&ts, NULL);
        }
        if (rc)
                return rc;
        fd = open_entry(fake, entry);
        if (fd < 0)
                return -errno;
        view.heap_ = malloc(len_bytes);
        if (!view.heap_)
                return -ENOMEM;
        if (pread(fd, view.heap_, len_bytes, (off_t)offset_bytes) !=
                (ssize_t)len_bytes) {
                free(view.heap_);
                return -EIO;
        }
        if (atomic_load(&fake->shared->short_view))
                len_bytes--;
        *ret_view = view;
        /* two pieces, as at a chunk's border */
        ret_view->inline_pieces_[0].iov_base = view.heap_;
        ret_view->inline_pieces_[0].iov_len = half;
        ret_view->inline_pieces_[1].iov_base = (char *)view.heap_ + half;
        ret_view->inline_pieces_[1].iov_len = len_bytes - half;
        ret_view->pieces = ret_view->inline_pieces_;
        ret_view->piece_count = 2;
        ret_view->len_bytes = len_bytes;
        atomic_fetch_add(&fake->shared->views_out, 1);
        return 0;
}

static void fake_release(void *arg, struct sheaf_view *view)
{
        struct fake_dataset *fake = arg;

        atomic_fetch_sub(&fake->shared->views_out, 1);
        free(view->heap_);
        view->heap_ = NULL;
}

static int fake_open_plain(
        void *arg, uint32_t entry, int *ret_fd, uint64_t *ret_lease)
{
        struct fake_dataset *fake = arg;
        int fd;

        if (atomic_load(&fake->shared->no_plain))
                return -EAGAIN;
        fd = open_entry(fake, entry);
        if (fd < 0)
                return -errno;
        atomic_fetch_add(&fake->shared->plain_open, 1);
        *ret_fd = fd;
        *ret_lease = entry;
        return 0;
}

static void fake_close_plain(void *arg, uint64_t lease)
{
        struct fake_dataset *fake = arg;

        (void)lease;
        atomic_fetch_sub(&fake->shared->plain_open, 1);
}

static int fake_cached(void *arg, uint32_t entry, uint64_t *ret_bytes)
{
        struct fake_dataset *fake = arg;

        *ret_bytes = fake->listing.entries[entry].size_bytes;
        return 0;
}

static int fake_digest(
        void *arg, uint32_t entry, struct sheaf_digest *ret_digest)
{
        struct fake_dataset *fake = arg;
        char buf[4096];
        sheaf_autofd int fd = open_entry(fake, entry);
        ssize_t n;

        if (fake->listing.entries[entry].size_bytes > sizeof(buf))
                return -ENODATA;
        if (fd < 0)
                return -errno;
        n = read(fd, buf, sizeof(buf));
        if (n < 0)
                return -errno;
        sheaf_digest_of(buf, (size_t)n, ret_digest);
        return 0;
}

static const char *fake_why(void *arg)
{
        (void)arg;
        return "as the test wants";
}

static void fake_count(void *arg, enum sheaf_meter_op op, uint64_t n)
{
        struct fake_dataset *fake = arg;

        atomic_fetch_add(&fake->shared->op[op], n);
}

static const struct sheaf_source_ops fake_ops = {
        .read = fake_read,
        .release = fake_release,
        .open_plain = fake_open_plain,
        .close_plain = fake_close_plain,
        .cached = fake_cached,
        .digest = fake_digest,
        .why = fake_why,
        .count = fake_count,
};

struct items {
        struct sheaf_listing_item *item;
        size_t count, room;
};

static void fill_item(struct sheaf_listing_item *item, const struct stat *st)
{
        item->size_bytes = S_ISREG(st->st_mode) ? (uint64_t)st->st_size : 0;
        item->origin_ino = st->st_ino;
        item->origin_dev = st->st_dev;
        item->mtime_sec = st->st_mtim.tv_sec;
        item->mtime_nsec = (uint32_t)st->st_mtim.tv_nsec;
        item->ctime_sec = st->st_ctim.tv_sec;
        item->ctime_nsec = (uint32_t)st->st_ctim.tv_nsec;
        item->mode = st->st_mode;
        item->uid = st->st_uid;
        item->gid = st->st_gid;
        item->nlink = (uint32_t)st->st_nlink;
}

static void add_item(int dir_fd, const char *name, struct items *items)
{
        struct sheaf_listing_item *item;
        struct stat st;

        if (items->count == items->room) {
                items->room = items->room ? items->room * 2 : 64;
                items->item = realloc(
                        items->item, items->room * sizeof(*items->item));
                REQUIRE(items->item);
        }
        item = &items->item[items->count++];
        memset(item, 0, sizeof(*item));
        REQUIRE(!fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW));
        fill_item(item, &st);
        item->name = strdup(name);
        item->name_len_bytes = strlen(name);
        if (S_ISLNK(st.st_mode)) {
                char target[PATH_MAX];
                ssize_t len = readlinkat(dir_fd, name, target, PATH_MAX - 1);

                REQUIRE(len >= 0);
                target[len] = '\0';
                item->target = strdup(target);
                item->target_len_bytes = (size_t)len;
        }
}

static void list_dir(
        struct sheaf_listing_builder *builder, const char *path, uint32_t dir)
{
        struct items items = { 0 };
        struct dirent *entry;
        DIR *handle = opendir(path);

        REQUIRE(handle);
        while ((entry = readdir(handle)))
                if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
                        add_item(dirfd(handle), entry->d_name, &items);
        closedir(handle);
        REQUIRE(!sheaf_listing_builder_add_dir(
                builder, dir, items.item, items.count));
        for (size_t i = 0; i < items.count; i++) {
                free((void *)(uintptr_t)items.item[i].name);
                free((void *)(uintptr_t)items.item[i].target);
        }
        free(items.item);
}

static void build_listing(struct fake_dataset *fake)
{
        struct sheaf_listing_builder *builder = NULL;
        struct sheaf_listing_item root = { 0 };
        char path[PATH_MAX * 2];
        uint32_t dir = 0;
        struct stat st;

        REQUIRE(!stat(fake->root, &st));
        fill_item(&root, &st);
        root.name = "";
        REQUIRE(!sheaf_listing_builder_new(&root, &builder));
        do {
                size_t len =
                        (size_t)snprintf(path, sizeof(path), "%s/", fake->root);

                sheaf_listing_builder_path(
                        builder, dir, path + len, sizeof(path) - len);
                list_dir(builder, path, dir);
                dir = sheaf_listing_builder_next_dir(builder, dir);
        } while (dir);
        fake->listing_fd = memfd_create("listing", MFD_CLOEXEC);
        REQUIRE(fake->listing_fd >= 0);
        REQUIRE(!sheaf_listing_builder_write(builder, fake->listing_fd, 7,
                (const uint8_t *)"0123456789abcdef", 1));
        sheaf_listing_builder_free(builder);
        fake->block_bytes = (size_t)lseek(fake->listing_fd, 0, SEEK_END);
        fake->block = mmap(NULL, fake->block_bytes, PROT_READ, MAP_SHARED,
                fake->listing_fd, 0);
        REQUIRE(fake->block != MAP_FAILED);
        REQUIRE(!sheaf_listing_open(
                fake->block, fake->block_bytes, true, &fake->listing));
        fake->info.owner_uid = st.st_uid;
        fake->info.domain_gid = st.st_gid;
}

void fake_dataset_new(const char *root, struct fake_dataset *ret_dataset)
{
        struct fake_dataset *fake = ret_dataset;

        memset(fake, 0, sizeof(*fake));
        fake->root = strdup(root);
        fake->shared = mmap(NULL, sizeof(*fake->shared), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        REQUIRE(fake->shared != MAP_FAILED);
        build_listing(fake);
        fake->info.name = "fake";
        memcpy(fake->info.uuid, "0123456789abcdef", 16);
        fake->info.domain = 2;
        fake->source.ops = &fake_ops;
        fake->source.arg = fake;
        fake->source.listing = &fake->listing;
        fake->source.info = &fake->info;
}

void fake_dataset_free(struct fake_dataset *dataset)
{
        munmap(dataset->block, dataset->block_bytes);
        munmap(dataset->shared, sizeof(*dataset->shared));
        close(dataset->listing_fd);
        free(dataset->root);
}
