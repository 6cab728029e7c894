/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that others may look at: memfds, their pages, seals and lock files.
 *
 *  1 a memfd is sealed before anybody but the daemon has its descriptor
 *  2 the daemon's writable mapping is older than the seals: they forbid any
 *    later one, the daemon's own too
 *  3 a descriptor of a locked file travels with each extent; its lock lasts
 *    until the last copy of the descriptor is closed. Each client gets an
 *    open file of its own, for reading: it can end its own lock only
 *
 * Pages of a segment are taken when it is first used, by one call that can
 * fail, so that a write to it later cannot. Loop thread. */
#include "daemon/store/arena_impl.h"
#include "proto/memfd.h"
#include "proto/pages.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* Segments that are taken in small pages after one for which the system had no
 * huge ones: looking for them costs time. */
#define COLLAPSE_PAUSE 64
#define MFD_HUGE       (MFD_HUGETLB | 21U << MAP_HUGE_SHIFT)

static int memfd_map(const char *name, uint64_t bytes, unsigned int flags,
        int seals, int *ret_fd, void **ret_map)
{
        sheaf_autofd int fd = sheaf_memfd(name, flags | MFD_ALLOW_SEALING);
        void *map;
        int rc;

        if (fd < 0)
                return fd;
        if (ftruncate(fd, (off_t)bytes) < 0)
                return -errno;
        map = sheaf_pages_map(bytes, PROT_READ | PROT_WRITE, fd);
        if (map == MAP_FAILED)
                return -errno;
        if (fcntl(fd, F_ADD_SEALS, seals) < 0) {
                rc = -errno;
                munmap(map, bytes);
                return rc;
        }
        *ret_map = map;
        *ret_fd = sheaf_steal_fd(&fd);
        return 0;
}

int sheaf_extent_memfd(const char *name, uint64_t bytes, bool read_only,
        int *ret_fd, void **ret_map)
{
        int seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW;

        return memfd_map(name, bytes, 0,
                read_only ? seals | F_SEAL_FUTURE_WRITE : seals, ret_fd,
                ret_map);
}

static bool huge_reserved(void)
{
        sheaf_autofd int fd = sheaf_memfd("sheaf-probe", MFD_HUGE);
        void *map;

        if (fd < 0 || ftruncate(fd, (off_t)SHEAF_HUGE_BYTES) < 0)
                return false;
        map = mmap(NULL, SHEAF_HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
                fd, 0);
        if (map == MAP_FAILED)
                return false;
        munmap(map, SHEAF_HUGE_BYTES);
        return true;
}

static bool thp_allowed(void)
{
        static const char path[] =
                "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
        sheaf_autofd int fd = open(path, O_RDONLY | O_CLOEXEC);
        char text[128];
        ssize_t n;

        if (fd < 0)
                return false;
        n = read(fd, text, sizeof(text) - 1);
        if (n <= 0)
                return false;
        text[n] = '\0';
        return !strstr(text, "[never]") && !strstr(text, "[deny]");
}

int sheaf_extent_probe(enum sheaf_pages wish, enum sheaf_pages *ret_pages,
        const char **ret_why)
{
        if (wish == SHEAF_PAGES_SMALL) {
                *ret_pages = SHEAF_PAGES_SMALL;
                *ret_why = "";
                return 0;
        }
        if (wish == SHEAF_PAGES_AUTO || wish == SHEAF_PAGES_HUGETLB) {
                if (huge_reserved()) {
                        *ret_pages = SHEAF_PAGES_HUGETLB;
                        *ret_why = "";
                        return 0;
                }
                if (wish == SHEAF_PAGES_HUGETLB)
                        return -ENOMEM;
        }
        if (thp_allowed() || sheaf_pages_on_request()) {
                *ret_pages = SHEAF_PAGES_THP;
                *ret_why = wish == SHEAF_PAGES_THP
                                   ? ""
                                   : "no huge pages are reserved "
                                     "(vm.nr_hugepages)";
                return 0;
        }
        if (wish == SHEAF_PAGES_THP)
                return -EOPNOTSUPP;
        *ret_pages = SHEAF_PAGES_SMALL;
        *ret_why = "no huge pages are reserved (vm.nr_hugepages), and "
                   "the kernel makes none on request (Linux 6.1, and "
                   "/sys/kernel/mm/transparent_hugepage/shmem_enabled not "
                   "deny)";
        return 0;
}

/* Locked through the descriptor that is returned. In memory: the disk of the
 * cache may fail, and clients are let in all the same. */
static int lock_file(int *ret_fd)
{
        const int seals =
                F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
        sheaf_autofd int fd =
                sheaf_memfd("sheaf-extent-lock", MFD_ALLOW_SEALING);

        if (fd < 0)
                return fd;
        if (fchmod(fd, 0600) < 0 || fcntl(fd, F_ADD_SEALS, seals) < 0 ||
                flock(fd, LOCK_SH | LOCK_NB) < 0)
                return -errno;
        *ret_fd = sheaf_steal_fd(&fd);
        return 0;
}

int sheaf_extent_lock(const struct sheaf_extent *extent, int *ret_fd)
{
        char path[32];
        sheaf_autofd int fd = -1;

        snprintf(path, sizeof(path), "/proc/self/fd/%d", extent->lock_fd);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        if (flock(fd, LOCK_SH | LOCK_NB) < 0)
                return -errno;
        *ret_fd = sheaf_steal_fd(&fd);
        return 0;
}

int sheaf_extent_make(
        struct sheaf_arena_pool *pool, struct sheaf_extent *ret_extent)
{
        const int seals =
                F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
        uint64_t bytes = pool->shape.extent_bytes;
        enum sheaf_pages pages = pool->pages;
        sheaf_autofd int lock = -1, fd = -1;
        void *map = NULL;
        int rc = lock_file(&lock);

        if (rc < 0)
                return rc;
        if (pages == SHEAF_PAGES_HUGETLB) {
                rc = memfd_map(
                        "sheaf-arena", bytes, MFD_HUGE, seals, &fd, &map);
                if (rc == -ENOMEM && pool->config.pages == SHEAF_PAGES_AUTO) {
                        pages = thp_allowed() || sheaf_pages_on_request()
                                        ? SHEAF_PAGES_THP
                                        : SHEAF_PAGES_SMALL;
                        pool->pages_why = "fewer huge pages are reserved than "
                                          "the arena needs (vm.nr_hugepages)";
                }
        }
        if (pages != SHEAF_PAGES_HUGETLB)
                rc = memfd_map("sheaf-arena", bytes, 0, seals, &fd, &map);
        if (rc < 0)
                return rc;
        if (pages == SHEAF_PAGES_THP)
                (void)madvise(map, bytes, MADV_HUGEPAGE); /* only a wish */
        /* Neither a core dump nor a child of the daemon needs the bytes. */
        (void)madvise(map, bytes, MADV_DONTDUMP);
        (void)madvise(map, bytes, MADV_DONTFORK);
        *ret_extent = (struct sheaf_extent){
                .fd = sheaf_steal_fd(&fd),
                .lock_fd = sheaf_steal_fd(&lock),
                .map = map,
                .pages = pages,
        };
        return 0;
}

void sheaf_extent_close(
        struct sheaf_arena_pool *pool, struct sheaf_extent *extent)
{
        if (extent->map)
                munmap(extent->map, pool->shape.extent_bytes);
        extent->map = NULL;
        sheaf_close_p(&extent->fd);
        sheaf_close_p(&extent->lock_fd);
}

int sheaf_extent_populate(struct sheaf_arena_pool *pool,
        const struct sheaf_extent *extent, uint64_t offset_bytes,
        uint64_t len_bytes)
{
        int rc;

        if (extent->pages == SHEAF_PAGES_THP && pool->collapse_pause)
                pool->collapse_pause--;
        else if (extent->pages == SHEAF_PAGES_THP &&
                 !sheaf_pages_collapse(extent->map + offset_bytes, len_bytes))
                pool->collapse_pause = COLLAPSE_PAUSE;
        do {
                rc = madvise(extent->map + offset_bytes, len_bytes,
                        MADV_POPULATE_WRITE);
        } while (rc < 0 && errno == EINTR);
        if (rc == 0)
                return 0;
        if (errno != EINVAL)
                return -ENOMEM;
        /* Before Linux 5.14. */
        if (fallocate(extent->fd, 0, (off_t)offset_bytes, (off_t)len_bytes) < 0)
                return -ENOMEM;
        return 0;
}
