/* SPDX-License-Identifier: Apache-2.0 */
/* Journals on disk stay within their bound, and each user within a share.
 *
 *  1 journals of versions that are gone go; a directory made just now is left
 *    alone, since its version may be younger than the list of versions
 *  2 above the bound whoever has most gives first: so nobody gives who has no
 *    more than the bound divided by the number of users
 *  3 of one user's epochs the oldest go first; those among the three newest of
 *    a job last, of a live job after those, and what a live job writes to now
 *    at the very end
 *  4 a directory goes with its last epoch unless its job is live; a user who
 *    has too many directories gives those that were not used for longest
 *
 * A job may come to life while its directory goes: writing makes it again, and
 * what tells whose it is comes back when the directory turns out not to be
 * empty. Threads: all runs on the pool, on copies. */
#include "daemon/jobs/internal.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

/* Of a directory that goes: hidden from lists. */
#define ABOUT_ASIDE ".about"

enum rank {
        OLD,
        NEWEST,
        NEWEST_LIVE,
        RUNNING
};

struct owner {
        struct sheaf_job_owner who;
        bool unknown; /* of those that no file tells */
        uint64_t bytes;
        size_t dirs;
        size_t next, end; /* its epochs */
};

struct kept_dir {
        char version[33], id[33];
        size_t owner;
        uint64_t bytes, epoch_bytes;
        uint64_t epochs;
        int64_t used_s;
        bool live, gone;
};

struct kept_epoch {
        size_t dir, owner;
        uint64_t epoch, bytes;
        int64_t written_s;
        enum rank rank;
};

struct look {
        struct sheaf_kept_bound *bound;
        int root;
        struct owner *owners;
        struct kept_dir *dirs;
        struct kept_epoch *epochs;
        size_t owner_count, owner_cap, dir_count, dir_cap, epoch_count,
                epoch_cap;
};

static uint64_t blocks_of(const struct stat *st)
{
        return (uint64_t)st->st_blocks * 512;
}

/* Room for one more of @size bytes in *@array. */
static bool grow(void *array, size_t count, size_t *cap, size_t size)
{
        size_t wider_cap = *cap ? 2 * *cap : 64;
        void **at = array, *wider;

        if (count < *cap)
                return true;
        wider = realloc(*at, wider_cap * size);
        if (!wider)
                return false;
        *at = wider;
        *cap = wider_cap;
        return true;
}

/* ---- what is there ---- */

static bool owner_of(struct look *look, int dir, size_t *ret_owner)
{
        SheafRecord__Job *about = sheaf_kept_read_about(dir);
        struct owner owner = { .unknown = !about };
        size_t i;

        if (about) {
                owner.who.grant = about->grant;
                owner.who.uid = about->grant ? 0 : about->uid;
                sheaf_record__job__free_unpacked(about, NULL);
        }
        for (i = 0; i < look->owner_count; i++)
                if (look->owners[i].unknown == owner.unknown &&
                        sheaf_job_owned(&look->owners[i].who, &owner.who))
                        break;
        *ret_owner = i;
        if (i < look->owner_count)
                return true;
        if (!grow(&look->owners, look->owner_count, &look->owner_cap,
                    sizeof(*look->owners)))
                return false;
        look->owners[look->owner_count++] = owner;
        return true;
}

static int by_number(const void *a, const void *b)
{
        const struct kept_epoch *x = a, *y = b;

        return (x->epoch > y->epoch) - (x->epoch < y->epoch);
}

static void rank(struct look *look, size_t first, bool live)
{
        size_t count = look->epoch_count - first;
        struct kept_epoch *each = look->epochs + first;

        if (!count)
                return;
        qsort(each, count, sizeof(*each), by_number);
        for (size_t i = 0; i < count; i++)
                if (count - i <= SHEAF_RUNS_PER_JOB)
                        each[i].rank = live ? NEWEST_LIVE : NEWEST;
        if (live)
                each[count - 1].rank = RUNNING;
}

/* One file of a job's directory. */
static void look_at_file(struct look *look, struct kept_dir *dir, size_t at,
        const char *name, const struct stat *st)
{
        struct kept_epoch epoch = { .dir = at, .owner = dir->owner };
        uint64_t bytes = blocks_of(st);

        look->bound->bytes += bytes;
        look->owners[dir->owner].bytes += bytes;
        if (!sheaf_journal_name(name, &epoch.epoch)) {
                dir->bytes += bytes;
                return;
        }
        dir->epochs++;
        dir->epoch_bytes += bytes;
        dir->used_s = SHEAF_MAX(dir->used_s, (int64_t)st->st_mtim.tv_sec);
        epoch.bytes = bytes;
        epoch.written_s = st->st_mtim.tv_sec;
        /* Without memory it is counted, and goes another time. */
        if (grow(&look->epochs, look->epoch_count, &look->epoch_cap,
                    sizeof(*look->epochs)))
                look->epochs[look->epoch_count++] = epoch;
}

static bool is_live_job(
        const struct sheaf_kept_bound *bound, const struct kept_dir *dir)
{
        for (size_t i = 0; i < bound->job_count; i++)
                if (!strcmp(bound->jobs[i].id, dir->id) &&
                        !strcmp(bound->jobs[i].version, dir->version))
                        return true;
        return false;
}

static void look_at_job(
        struct look *look, int at, const char *version, const char *id)
{
        struct kept_dir dir = { .bytes = 0 };
        size_t first = look->epoch_count;
        DIR *list = sheaf_kept_list(at, id);
        const char *name;
        struct stat st;

        if (!list)
                return;
        if (fstat(dirfd(list), &st) ||
                !owner_of(look, dirfd(list), &dir.owner)) {
                closedir(list);
                return;
        }
        memcpy(dir.version, version, sizeof(dir.version));
        snprintf(dir.id, sizeof(dir.id), "%s", id);
        dir.used_s = st.st_mtim.tv_sec;
        dir.bytes = blocks_of(&st);
        dir.live = is_live_job(look->bound, &dir);
        look->bound->bytes += dir.bytes;
        look->owners[dir.owner].bytes += dir.bytes;
        look->owners[dir.owner].dirs++;
        while ((name = sheaf_kept_next(list)))
                if (!fstatat(dirfd(list), name, &st, AT_SYMLINK_NOFOLLOW))
                        look_at_file(look, &dir, look->dir_count, name, &st);
        closedir(list);
        if (!grow(&look->dirs, look->dir_count, &look->dir_cap,
                    sizeof(*look->dirs))) {
                look->epoch_count = first;
                return;
        }
        rank(look, first, dir.live);
        look->dirs[look->dir_count++] = dir;
}

static bool is_live_version(
        const struct sheaf_kept_bound *bound, const char *name)
{
        for (size_t i = 0; i < bound->version_count; i++)
                if (!strcmp(bound->versions[i], name))
                        return true;
        return false;
}

static int64_t made_ns(const struct stat *st)
{
        return st->st_mtim.tv_sec * SHEAF_NS_PER_SEC + st->st_mtim.tv_nsec;
}

static void look_at_version(struct look *look, const char *name)
{
        char version[33];
        const char *id;
        struct stat st;
        DIR *list;

        if (strlen(name) != 32 ||
                fstatat(look->root, name, &st, AT_SYMLINK_NOFOLLOW))
                return;
        if (!is_live_version(look->bound, name) &&
                made_ns(&st) < look->bound->before_ns) {
                sheaf_kept_remove(look->root, name);
                return;
        }
        memcpy(version, name, sizeof(version));
        look->bound->bytes += blocks_of(&st);
        list = sheaf_kept_list(look->root, version);
        while ((id = sheaf_kept_next(list)))
                if (strlen(id) == 32)
                        look_at_job(look, dirfd(list), version, id);
        if (list)
                closedir(list);
}

/* ---- what goes ---- */

static void count_off(struct look *look, size_t owner, uint64_t bytes)
{
        struct owner *of = &look->owners[owner];

        look->bound->bytes -= SHEAF_MIN(bytes, look->bound->bytes);
        of->bytes -= SHEAF_MIN(bytes, of->bytes);
}

/* A directory without epochs. */
static void remove_dir(struct look *look, struct kept_dir *dir)
{
        char path[80], about[96], partial[96];

        snprintf(path, sizeof(path), "%s/%s", dir->version, dir->id);
        snprintf(partial, sizeof(partial), "%s/" SHEAF_KEPT_ABOUT_NEW, path);
        (void)unlinkat(look->root, partial, 0); /* of one who was killed */
        snprintf(about, sizeof(about), "%s/" SHEAF_KEPT_ABOUT, path);
        if (renameat(look->root, about, look->root, ABOUT_ASIDE) &&
                errno != ENOENT)
                return;
        if (unlinkat(look->root, path, AT_REMOVEDIR)) {
                (void)renameat(look->root, ABOUT_ASIDE, look->root, about);
                return;
        }
        (void)unlinkat(look->root, ABOUT_ASIDE, 0);
        dir->gone = true;
        look->owners[dir->owner].dirs--;
        count_off(look, dir->owner, dir->bytes);
}

static void remove_epoch(struct look *look, const struct kept_epoch *epoch)
{
        struct kept_dir *dir = &look->dirs[epoch->dir];
        char path[128];

        snprintf(path, sizeof(path), "%s/%s/%llu", dir->version, dir->id,
                (unsigned long long)epoch->epoch);
        if (unlinkat(look->root, path, 0))
                return;
        count_off(look, epoch->owner, epoch->bytes);
        dir->epoch_bytes -= epoch->bytes;
        if (--dir->epochs == 0 && !dir->live)
                remove_dir(look, dir);
}

static int by_what_goes_first(const void *a, const void *b)
{
        const struct kept_epoch *x = a, *y = b;

        if (x->owner != y->owner)
                return x->owner > y->owner ? 1 : -1;
        if (x->rank != y->rank)
                return x->rank > y->rank ? 1 : -1;
        return (x->written_s > y->written_s) - (x->written_s < y->written_s);
}

/* Whoever has most, and something that can go. */
static struct owner *greatest(struct look *look)
{
        struct owner *most = NULL;

        for (size_t i = 0; i < look->owner_count; i++) {
                struct owner *owner = &look->owners[i];

                if (owner->next < owner->end &&
                        (!most || owner->bytes > most->bytes))
                        most = owner;
        }
        return most;
}

/* Directories above the jobs' are nobody's: they must not make those pay who
 * are within their shares. */
static void shrink(struct look *look)
{
        const struct sheaf_kept_bound *bound = look->bound;
        uint64_t share =
                bound->bytes_max / SHEAF_MAX(look->owner_count, (size_t)1);
        struct owner *owner;

        if (bound->bytes <= bound->bytes_max || !look->epoch_count)
                return;
        qsort(look->epochs, look->epoch_count, sizeof(*look->epochs),
                by_what_goes_first);
        for (size_t i = 0; i < look->epoch_count; i++) {
                owner = &look->owners[look->epochs[i].owner];
                if (!owner->end)
                        owner->next = i;
                owner->end = i + 1;
        }
        while (bound->bytes > bound->bytes_max && (owner = greatest(look)) &&
                owner->bytes > share)
                remove_epoch(look, &look->epochs[owner->next++]);
}

static int by_owner_and_age(const void *a, const void *b)
{
        const struct kept_dir *x = a, *y = b;

        if (x->owner != y->owner)
                return x->owner > y->owner ? 1 : -1;
        return (x->used_s > y->used_s) - (x->used_s < y->used_s);
}

/* Directories beyond what a user may have, and those that hold nothing. */
static void thin_out(struct look *look)
{
        if (!look->dir_count)
                return;
        qsort(look->dirs, look->dir_count, sizeof(*look->dirs),
                by_owner_and_age);
        for (size_t i = 0; i < look->dir_count; i++) {
                struct kept_dir *dir = &look->dirs[i];
                const struct owner *owner = &look->owners[dir->owner];
                char path[80];

                if (dir->live || dir->gone)
                        continue;
                if (!dir->epochs) {
                        remove_dir(look, dir);
                } else if (owner->dirs > SHEAF_KEPT_PER_OWNER) {
                        snprintf(path, sizeof(path), "%s/%s", dir->version,
                                dir->id);
                        sheaf_kept_remove(look->root, path);
                        look->owners[dir->owner].dirs--;
                        count_off(look, dir->owner,
                                dir->bytes + dir->epoch_bytes);
                }
        }
}

void sheaf_kept_bound_work(struct sheaf_kept_bound *bound)
{
        DIR *list = sheaf_kept_list(AT_FDCWD, bound->root);
        struct look look = { .bound = bound };
        const char *name;
        struct stat st;

        if (!list)
                return;
        look.root = dirfd(list);
        (void)unlinkat(look.root, ABOUT_ASIDE, 0); /* of one who was killed */
        if (fstat(look.root, &st) == 0)
                bound->bytes = blocks_of(&st);
        while ((name = sheaf_kept_next(list)))
                look_at_version(&look, name);
        shrink(&look);
        thin_out(&look);
        closedir(list);
        free(look.owners);
        free(look.dirs);
        free(look.epochs);
}
