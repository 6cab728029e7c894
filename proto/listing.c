/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a listing in place: checks, lookups, paths, attributes.
 *
 *  1 a block may come from a hostile reader: nothing in it is used as an
 *    index or an offset before sheaf_listing_open() has checked it
 *  2 the full check is one pass in entry order and allocates nothing
 *  3 after a full check every accessor stays inside the block
 *
 * Threads: a view is a constant; everything here may run anywhere. */
#include "proto/listing.h"

#define NSEC_MASK ((UINT64_C(1) << 30) - 1)

static const size_t section_bytes[SHEAF_LISTING_SECTIONS] = {
        [SHEAF_LISTING_ENTRIES] = sizeof(struct sheaf_listing_entry),
        [SHEAF_LISTING_NAMES] = 1,
        [SHEAF_LISTING_FILES] = sizeof(uint32_t),
        [SHEAF_LISTING_NODES] = sizeof(uint32_t),
        [SHEAF_LISTING_OWNERS] = sizeof(struct sheaf_listing_owner),
};

static bool all_zero(const void *data, size_t len_bytes)
{
        const uint8_t *bytes = data;

        for (size_t i = 0; i < len_bytes; i++) {
                if (bytes[i])
                        return false;
        }
        return true;
}

/* Sections lie in order, aligned, without overlap, inside the block. */
static bool spans_fit(const struct sheaf_listing_header *header)
{
        uint64_t end = sizeof(*header);

        for (size_t i = 0; i < SHEAF_LISTING_SECTIONS; i++) {
                const struct sheaf_listing_span *span = &header->section[i];
                uint64_t bytes;

                if (!section_bytes[i]) {
                        if (span->count || span->offset_bytes)
                                return false;
                        continue;
                }
                if (span->offset_bytes % 8 || span->offset_bytes < end)
                        return false;
                if (__builtin_mul_overflow(
                            span->count, section_bytes[i], &bytes) ||
                        __builtin_add_overflow(
                                span->offset_bytes, bytes, &end) ||
                        end > header->total_bytes)
                        return false;
        }
        return true;
}

static int check_header(const void *data, size_t len_bytes)
{
        const struct sheaf_listing_header *header = data;
        const struct sheaf_listing_span *span;

        if (len_bytes < sizeof(*header) || (uintptr_t)data % 8 ||
                header->magic != SHEAF_LISTING_MAGIC)
                return -EBADMSG;
        if (header->layout != SHEAF_LISTING_LAYOUT)
                return -EPROTONOSUPPORT;
        if (header->entry_bytes != sizeof(struct sheaf_listing_entry) ||
                header->total_bytes > len_bytes || !header->serial ||
                header->serial > INT32_MAX ||
                !all_zero(header->zero0, sizeof(header->zero0)) ||
                !all_zero(header->zero, sizeof(header->zero)) ||
                !spans_fit(header))
                return -EBADMSG;
        span = header->section;
        if (!span[SHEAF_LISTING_ENTRIES].count ||
                span[SHEAF_LISTING_ENTRIES].count >= UINT32_MAX ||
                span[SHEAF_LISTING_NAMES].count > UINT32_MAX ||
                span[SHEAF_LISTING_FILES].count >=
                        span[SHEAF_LISTING_ENTRIES].count ||
                !span[SHEAF_LISTING_NODES].count ||
                span[SHEAF_LISTING_NODES].count >
                        span[SHEAF_LISTING_ENTRIES].count ||
                span[SHEAF_LISTING_OWNERS].count > UINT16_MAX)
                return -EBADMSG;
        return 0;
}

static void make_view(const void *data, struct sheaf_listing *view)
{
        const struct sheaf_listing_header *header = data;
        const struct sheaf_listing_span *span = header->section;
        const char *base = data;

        *view = (struct sheaf_listing){
                .header = header,
                .entries = (const void *)(base + span[SHEAF_LISTING_ENTRIES]
                                                         .offset_bytes),
                .names = base + span[SHEAF_LISTING_NAMES].offset_bytes,
                .files = (const void *)(base +
                                        span[SHEAF_LISTING_FILES].offset_bytes),
                .nodes = (const void *)(base +
                                        span[SHEAF_LISTING_NODES].offset_bytes),
                .owners =
                        (const void *)(base +
                                       span[SHEAF_LISTING_OWNERS].offset_bytes),
                .entry_count = (uint32_t)span[SHEAF_LISTING_ENTRIES].count,
                .file_count = (uint32_t)span[SHEAF_LISTING_FILES].count,
                .node_count = (uint32_t)span[SHEAF_LISTING_NODES].count,
                .owner_count = (uint32_t)span[SHEAF_LISTING_OWNERS].count,
                .names_bytes = span[SHEAF_LISTING_NAMES].count,
                .chunk_count = header->chunk_count,
        };
}

static int compare_names(
        const char *a, size_t a_len, const char *b, size_t b_len)
{
        int order = memcmp(a, b, SHEAF_MIN(a_len, b_len));

        if (order)
                return order;
        return a_len < b_len ? -1 : a_len > b_len;
}

bool sheaf_listing_name_valid(const char *name, size_t len_bytes)
{
        if (!len_bytes || len_bytes > SHEAF_LISTING_NAME_MAX)
                return false;
        if (memchr(name, 0, len_bytes) || memchr(name, '/', len_bytes))
                return false;
        return !(name[0] == '.' &&
                 (len_bytes == 1 || (len_bytes == 2 && name[1] == '.')));
}

/* What the pass over the entries has seen so far. */
struct pass {
        uint64_t next_child; /* first entry that is no directory's child yet */
        uint64_t next_chunk;
        uint64_t payload_bytes;
        uint32_t ordinal;
        uint32_t node_hint; /* position in nodes[] of the next new node */
};

/* Position of @node in nodes[], or node_count. */
static uint32_t node_position(const struct sheaf_listing *view, uint64_t node)
{
        uint32_t lo = 0, hi = view->node_count;

        while (lo < hi) {
                uint32_t mid = lo + (hi - lo) / 2;

                if (view->entries[view->nodes[mid]].node < node)
                        lo = mid + 1;
                else
                        hi = mid;
        }
        if (lo < view->node_count &&
                view->entries[view->nodes[lo]].node == node)
                return lo;
        return view->node_count;
}

static bool nodes_ascend(const struct sheaf_listing *view)
{
        uint64_t last = 0;

        for (uint32_t i = 0; i < view->node_count; i++) {
                if (view->nodes[i] >= view->entry_count ||
                        view->entries[view->nodes[i]].node <= last)
                        return false;
                last = view->entries[view->nodes[i]].node;
        }
        return true;
}

static bool common_fields_good(
        const struct sheaf_listing *view, const struct sheaf_listing_entry *e)
{
        uint64_t serial = e->node >> 32;

        if ((uint64_t)e->name_offset_bytes + e->name_len_bytes >
                        view->names_bytes ||
                e->owner >= view->owner_count || e->mtime_nsec > 999999999 ||
                (e->ctime_packed & NSEC_MASK) > 999999999)
                return false;
        if (e->flags & ~(SHEAF_LISTING_HARDLINK | SHEAF_LISTING_ESCAPES |
                               SHEAF_LISTING_RECENT | SHEAF_LISTING_FOLLOWED |
                               SHEAF_LISTING_UNREADABLE))
                return false;
        if (e->flags & SHEAF_LISTING_UNREADABLE &&
                (!S_ISDIR(e->mode) || e->child_count))
                return false;
        if (e == view->entries)
                return e->node == SHEAF_LISTING_NODE_ROOT && !e->parent &&
                       !e->name_len_bytes && S_ISDIR(e->mode);
        return serial >= 1 && serial <= view->header->serial;
}

static bool dir_good(
        const struct sheaf_listing *view, struct pass *pass, uint32_t index)
{
        const struct sheaf_listing_entry *dir = &view->entries[index];
        const struct sheaf_listing_entry *prev = NULL;

        if (dir->size_bytes || dir->file_ordinal ||
                dir->flags & SHEAF_LISTING_HARDLINK)
                return false;
        if (!dir->child_count)
                return !dir->first_child;
        if (dir->first_child != pass->next_child)
                return false;
        pass->next_child += dir->child_count;
        if (pass->next_child > view->entry_count)
                return false;
        for (uint32_t i = 0; i < dir->child_count; i++) {
                const struct sheaf_listing_entry *e =
                        &view->entries[dir->first_child + i];
                const char *name = view->names + e->name_offset_bytes;

                if (e->parent != index ||
                        (uint64_t)e->name_offset_bytes + e->name_len_bytes >
                                view->names_bytes ||
                        !sheaf_listing_name_valid(name, e->name_len_bytes))
                        return false;
                if (prev && compare_names(view->names + prev->name_offset_bytes,
                                    prev->name_len_bytes, name,
                                    e->name_len_bytes) >= 0)
                        return false;
                prev = e;
        }
        return true;
}

/* A later hard link repeats everything that belongs to the inode. */
static bool same_inode(const struct sheaf_listing_entry *a,
        const struct sheaf_listing_entry *b)
{
        return a->flags & b->flags & SHEAF_LISTING_HARDLINK &&
               (a->mode & S_IFMT) == (b->mode & S_IFMT) &&
               a->size_bytes == b->size_bytes &&
               a->origin_ino == b->origin_ino &&
               a->ctime_packed == b->ctime_packed &&
               a->mtime_sec == b->mtime_sec && a->mtime_nsec == b->mtime_nsec &&
               a->first_chunk == b->first_chunk;
}

/* The entry that stands for the inode of @index in nodes[]. */
static bool first_link(const struct sheaf_listing *view, struct pass *pass,
        uint32_t index, uint32_t *ret_first)
{
        uint32_t at = pass->node_hint;

        /* Fresh listings, and long runs of updated ones, are in order. */
        if (at >= view->node_count || view->nodes[at] != index)
                at = node_position(view, view->entries[index].node);
        if (at >= view->node_count || view->nodes[at] > index)
                return false;
        *ret_first = view->nodes[at];
        if (*ret_first == index)
                pass->node_hint = at + 1;
        return *ret_first == index ||
               same_inode(&view->entries[*ret_first], &view->entries[index]);
}

static bool link_good(
        const struct sheaf_listing *view, const struct sheaf_listing_entry *e)
{
        return e->size_bytes == e->target_len_bytes && e->target_len_bytes &&
               e->target_len_bytes <= SHEAF_LISTING_TARGET_MAX &&
               (uint64_t)e->target_offset_bytes + e->target_len_bytes <=
                       view->names_bytes &&
               !memchr(view->names + e->target_offset_bytes, 0,
                       e->target_len_bytes) &&
               !e->file_ordinal;
}

static bool file_good(const struct sheaf_listing *view, struct pass *pass,
        uint32_t index, bool first)
{
        const struct sheaf_listing_entry *e = &view->entries[index];

        if (pass->ordinal >= view->file_count ||
                e->file_ordinal != pass->ordinal ||
                view->files[pass->ordinal] != index ||
                e->size_bytes > SHEAF_LISTING_FILE_BYTES_MAX)
                return false;
        pass->ordinal++;
        if (!first)
                return true;
        if (e->first_chunk != pass->next_chunk)
                return false;
        pass->next_chunk += sheaf_chunk_count(e->size_bytes);
        pass->payload_bytes += e->size_bytes;
        return true;
}

static bool entries_good(const struct sheaf_listing *view)
{
        struct pass pass = { .next_child = 1 };

        if (!nodes_ascend(view))
                return false;
        for (uint32_t i = 0; i < view->entry_count; i++) {
                const struct sheaf_listing_entry *e = &view->entries[i];
                uint32_t first;
                bool good;

                /* An entry that no earlier directory claimed is nowhere. */
                if (i >= pass.next_child || !common_fields_good(view, e) ||
                        !first_link(view, &pass, i, &first))
                        return false;
                if (S_ISDIR(e->mode))
                        good = first == i && dir_good(view, &pass, i);
                else if (S_ISLNK(e->mode))
                        good = link_good(view, e);
                else
                        good = S_ISREG(e->mode) &&
                               file_good(view, &pass, i, first == i);
                if (!good)
                        return false;
        }
        return pass.next_child == view->entry_count &&
               pass.ordinal == view->file_count &&
               pass.next_chunk == view->header->chunk_count &&
               pass.payload_bytes == view->header->payload_bytes;
}

int sheaf_listing_open(const void *data, size_t len_bytes, bool full,
        struct sheaf_listing *ret_listing)
{
        struct sheaf_listing view;
        int rc = check_header(data, len_bytes);

        if (rc)
                return rc;
        make_view(data, &view);
        if (full && !entries_good(&view))
                return -EBADMSG;
        *ret_listing = view;
        return 0;
}

const char *sheaf_listing_name(const struct sheaf_listing *listing,
        uint32_t index, size_t *ret_len_bytes)
{
        const struct sheaf_listing_entry *e = &listing->entries[index];

        *ret_len_bytes = e->name_len_bytes;
        return listing->names + e->name_offset_bytes;
}

const char *sheaf_listing_target(const struct sheaf_listing *listing,
        uint32_t index, size_t *ret_len_bytes)
{
        const struct sheaf_listing_entry *e = &listing->entries[index];

        *ret_len_bytes = e->target_len_bytes;
        return listing->names + e->target_offset_bytes;
}

int sheaf_listing_child(const struct sheaf_listing *listing, uint32_t dir,
        const char *name, size_t len_bytes, uint32_t *ret_index)
{
        const struct sheaf_listing_entry *e = &listing->entries[dir];
        uint32_t lo, hi;

        if (!S_ISDIR(e->mode))
                return -ENOTDIR;
        if (e->flags & SHEAF_LISTING_UNREADABLE)
                return -EACCES;
        lo = e->first_child;
        hi = e->first_child + e->child_count;
        while (lo < hi) {
                uint32_t mid = lo + (hi - lo) / 2;
                size_t mid_len;
                const char *mid_name =
                        sheaf_listing_name(listing, mid, &mid_len);
                int order = compare_names(mid_name, mid_len, name, len_bytes);

                if (!order) {
                        *ret_index = mid;
                        return 0;
                }
                if (order < 0)
                        lo = mid + 1;
                else
                        hi = mid;
        }
        return -ENOENT;
}

int sheaf_listing_find(const struct sheaf_listing *listing, const char *path,
        size_t len_bytes, uint32_t *ret_index)
{
        const char *end = path + len_bytes;
        uint32_t at = 0;

        while (path < end) {
                const char *slash = memchr(path, '/', (size_t)(end - path));
                size_t len = (size_t)((slash ? slash : end) - path);
                const char *name = path;
                int rc;

                path += len + (slash != NULL);
                if (!len || (len == 1 && name[0] == '.'))
                        continue;
                if (len == 2 && name[0] == '.' && name[1] == '.')
                        return -EINVAL;
                if (len > SHEAF_LISTING_NAME_MAX)
                        return -ENAMETOOLONG;
                rc = sheaf_listing_child(listing, at, name, len, &at);
                if (rc)
                        return rc;
                if (slash && !S_ISDIR(listing->entries[at].mode))
                        return -ENOTDIR;
        }
        *ret_index = at;
        return 0;
}

int sheaf_listing_by_node(
        const struct sheaf_listing *listing, uint64_t node, uint32_t *ret_index)
{
        uint32_t at = node_position(listing, node);

        if (at == listing->node_count)
                return -ENOENT;
        *ret_index = listing->nodes[at];
        return 0;
}

size_t sheaf_listing_path(const struct sheaf_listing *listing, uint32_t index,
        char *buf, size_t cap_bytes)
{
        const struct sheaf_listing_entry *entries = listing->entries;

        return sheaf_listing_join(
                entries, listing->names, index, buf, cap_bytes);
}

size_t sheaf_listing_join(const struct sheaf_listing_entry *entries,
        const char *names, uint32_t index, char *buf, size_t cap_bytes)
{
        size_t len = 0, at;

        for (uint32_t i = index; i; i = entries[i].parent)
                len += entries[i].name_len_bytes +
                       (size_t)(entries[i].parent != 0);
        if (len >= cap_bytes)
                return len;
        buf[at = len] = 0;
        for (uint32_t i = index; i; i = entries[i].parent) {
                at -= entries[i].name_len_bytes;
                memcpy(buf + at, names + entries[i].name_offset_bytes,
                        entries[i].name_len_bytes);
                if (entries[i].parent)
                        buf[--at] = '/';
        }
        return len;
}

void sheaf_listing_stat(const struct sheaf_listing *listing, uint32_t index,
        struct stat *ret_stat)
{
        const struct sheaf_listing_entry *e = &listing->entries[index];
        const struct sheaf_listing_owner *owner = &listing->owners[e->owner];
        struct stat st = {
                .st_ino = e->node,
                .st_mode = e->mode,
                .st_nlink = e->nlink,
                .st_uid = owner->uid,
                .st_gid = owner->gid,
                .st_size = (off_t)e->size_bytes,
                .st_blksize = 128 * SHEAF_KIB,
                .st_blocks =
                        (blkcnt_t)(sheaf_round_up(e->size_bytes, 4096) / 512),
                .st_mtim = { .tv_sec = e->mtime_sec, .tv_nsec = e->mtime_nsec },
                .st_ctim = { .tv_sec = sheaf_listing_ctime_sec(e->ctime_packed),
                        .tv_nsec = (long)(e->ctime_packed & NSEC_MASK) },
        };

        if (S_ISDIR(e->mode))
                st.st_size = 4096;
        st.st_atim = st.st_mtim;
        *ret_stat = st;
}
