/* SPDX-License-Identifier: Apache-2.0 */
/* Making listings: the builder, and the inheritance of node ids.
 *
 *  1 children get the next free indexes in the order of their names, so
 *    breadth-first order follows from directories being added in index order
 *  2 until write, entry.node holds the index of the first hard link
 *  3 a failed add_dir leaves no trace (names that it stored are overwritten)
 *
 * Threads: one builder, one thread. */
#include "proto/io.h"
#include "proto/listing.h"

#define NONE UINT32_MAX

struct link_slot {
        uint64_t dev, ino;
        uint32_t entry;
        bool used;
};

struct sheaf_listing_builder {
        struct sheaf_listing_entry *entries;
        size_t entry_count, entry_cap;
        char *names;
        size_t names_bytes, names_cap;
        struct sheaf_listing_owner *owners;
        size_t owner_count, owner_cap;
        struct link_slot *links; /* open addressing, at most half full */
        size_t link_count, link_cap;
        const struct sheaf_listing_item **order; /* scratch of add_dir */
        size_t order_cap;
        uint32_t file_count;
        uint32_t last_dir; /* highest directory with children */
        uint32_t last_owner;
        uint64_t chunk_count, payload_bytes, further_links;
};

static int grow(void *array_p, size_t *cap, size_t need, size_t elem_bytes)
{
        void **array = array_p;
        size_t next = *cap ? *cap : 64;
        void *p;

        if (need <= *cap)
                return 0;
        while (next < need)
                next += next / 2;
        p = reallocarray(*array, next, elem_bytes);
        if (!p)
                return -ENOMEM;
        *array = p;
        *cap = next;
        return 0;
}

static int find_owner(struct sheaf_listing_builder *b, uint32_t uid,
        uint32_t gid, uint16_t *ret_owner)
{
        int rc;

        /* Trees have few owners, and neighbours share theirs. */
        if (b->last_owner < b->owner_count &&
                b->owners[b->last_owner].uid == uid &&
                b->owners[b->last_owner].gid == gid) {
                *ret_owner = (uint16_t)b->last_owner;
                return 0;
        }
        for (size_t i = 0; i < b->owner_count; i++) {
                if (b->owners[i].uid == uid && b->owners[i].gid == gid) {
                        *ret_owner = (uint16_t)(b->last_owner = (uint32_t)i);
                        return 0;
                }
        }
        if (b->owner_count == UINT16_MAX)
                return -EOVERFLOW;
        rc = grow(&b->owners, &b->owner_cap, b->owner_count + 1,
                sizeof(*b->owners));
        if (rc)
                return rc;
        b->owners[b->owner_count] =
                (struct sheaf_listing_owner){ .uid = uid, .gid = gid };
        b->last_owner = (uint32_t)b->owner_count++;
        *ret_owner = (uint16_t)b->last_owner;
        return 0;
}

static size_t link_hash(uint64_t dev, uint64_t ino)
{
        uint64_t h = (ino ^ dev * UINT64_C(0x9e3779b97f4a7c15)) *
                     UINT64_C(0xff51afd7ed558ccd);

        return (size_t)(h ^ h >> 32);
}

static struct link_slot *link_find(
        struct link_slot *links, size_t cap, uint64_t dev, uint64_t ino)
{
        size_t at = link_hash(dev, ino) & (cap - 1);

        while (links[at].used && (links[at].dev != dev || links[at].ino != ino))
                at = (at + 1) & (cap - 1);
        return &links[at];
}

/* Room for @more further links. */
static int link_reserve(struct sheaf_listing_builder *b, size_t more)
{
        size_t cap = b->link_cap ? b->link_cap : 64;
        struct link_slot *links;

        while (cap < 2 * (b->link_count + more))
                cap *= 2;
        if (cap == b->link_cap)
                return 0;
        links = sheaf_new(struct link_slot, cap);
        if (!links)
                return -ENOMEM;
        for (size_t i = 0; i < b->link_cap; i++) {
                struct link_slot *old = &b->links[i];

                if (old->used)
                        *link_find(links, cap, old->dev, old->ino) = *old;
        }
        free(b->links);
        b->links = links;
        b->link_cap = cap;
        return 0;
}

static int compare_items(const void *a_p, const void *b_p)
{
        const struct sheaf_listing_item *a =
                *(const struct sheaf_listing_item *const *)a_p;
        const struct sheaf_listing_item *b =
                *(const struct sheaf_listing_item *const *)b_p;
        int order = memcmp(a->name, b->name,
                SHEAF_MIN(a->name_len_bytes, b->name_len_bytes));

        if (order)
                return order;
        return a->name_len_bytes < b->name_len_bytes
                       ? -1
                       : a->name_len_bytes > b->name_len_bytes;
}

static int check_item(const struct sheaf_listing_item *item)
{
        if (!sheaf_listing_name_valid(item->name, item->name_len_bytes))
                return -EINVAL;
        if (item->mtime_nsec > 999999999 || item->ctime_nsec > 999999999)
                return -EINVAL;
        if (S_ISREG(item->mode))
                return item->size_bytes > SHEAF_LISTING_FILE_BYTES_MAX ? -EFBIG
                                                                       : 0;
        if (S_ISLNK(item->mode))
                return item->target_len_bytes &&
                                       item->target_len_bytes <=
                                               SHEAF_LISTING_TARGET_MAX &&
                                       !memchr(item->target, 0,
                                               item->target_len_bytes)
                               ? 0
                               : -EINVAL;
        return S_ISDIR(item->mode) ? 0 : -EINVAL;
}

static bool may_have_links(const struct sheaf_listing_item *item)
{
        return !S_ISDIR(item->mode) &&
               (item->nlink > 1 || item->flags & SHEAF_LISTING_FOLLOWED);
}

/* Checks everything and makes all room, so that adding cannot fail; sorts
 * the items into b->order. */
static int prepare(struct sheaf_listing_builder *b,
        const struct sheaf_listing_item *items, size_t count)
{
        size_t names_bytes = b->names_bytes, links = 0;
        int rc;

        if (count >= NONE - b->entry_count)
                return -EOVERFLOW;
        rc = grow(&b->order, &b->order_cap, count, sizeof(*b->order));
        if (rc)
                return rc;
        for (size_t i = 0; i < count; i++) {
                uint16_t owner;

                rc = check_item(&items[i]);
                if (!rc)
                        rc = find_owner(b, items[i].uid, items[i].gid, &owner);
                if (rc)
                        return rc;
                names_bytes +=
                        items[i].name_len_bytes +
                        (S_ISLNK(items[i].mode) ? items[i].target_len_bytes
                                                : 0);
                links += may_have_links(&items[i]);
                b->order[i] = &items[i];
        }
        if (names_bytes > UINT32_MAX)
                return -EOVERFLOW;
        qsort(b->order, count, sizeof(*b->order), compare_items);
        for (size_t i = 1; i < count; i++) {
                if (!compare_items(&b->order[i - 1], &b->order[i]))
                        return -EEXIST;
        }
        rc = grow(&b->names, &b->names_cap, names_bytes, 1);
        if (!rc)
                rc = grow(&b->entries, &b->entry_cap, b->entry_count + count,
                        sizeof(*b->entries));
        if (!rc && links)
                rc = link_reserve(b, links);
        return rc;
}

static uint32_t store_bytes(
        struct sheaf_listing_builder *b, const char *bytes, size_t len_bytes)
{
        uint32_t offset = (uint32_t)b->names_bytes;

        memcpy(b->names + b->names_bytes, bytes, len_bytes);
        b->names_bytes += len_bytes;
        return offset;
}

static struct sheaf_listing_entry plain_entry(
        const struct sheaf_listing_item *item, uint32_t index)
{
        return (struct sheaf_listing_entry){
                .node = index,
                .origin_ino = item->origin_ino,
                .ctime_packed = sheaf_listing_pack_ctime(
                        item->ctime_sec, item->ctime_nsec),
                .mtime_sec = item->mtime_sec,
                .mtime_nsec = item->mtime_nsec,
                .mode = (uint16_t)item->mode,
                .nlink = (uint16_t)SHEAF_MIN(item->nlink, UINT16_MAX),
                .flags = item->flags,
        };
}

/* Entry of the same inode that was added before, or NONE. A file that
 * changed its type between two looks is not the same. */
static uint32_t link_of(struct sheaf_listing_builder *b,
        const struct sheaf_listing_item *item, uint32_t index)
{
        struct link_slot *slot;

        if (!may_have_links(item))
                return NONE;
        slot = link_find(
                b->links, b->link_cap, item->origin_dev, item->origin_ino);
        if (slot->used)
                return (b->entries[slot->entry].mode & S_IFMT) ==
                                       (item->mode & S_IFMT)
                               ? slot->entry
                               : NONE;
        *slot = (struct link_slot){ .dev = item->origin_dev,
                .ino = item->origin_ino,
                .entry = index,
                .used = true };
        b->link_count++;
        return NONE;
}

static void fill_from_link(struct sheaf_listing_builder *b,
        struct sheaf_listing_entry *e, uint32_t first_index)
{
        struct sheaf_listing_entry *first = &b->entries[first_index];

        first->flags |= SHEAF_LISTING_HARDLINK;
        e->flags |= SHEAF_LISTING_HARDLINK;
        e->node = first->node;
        e->size_bytes = first->size_bytes;
        e->ctime_packed = first->ctime_packed;
        e->mtime_sec = first->mtime_sec;
        e->mtime_nsec = first->mtime_nsec;
        e->first_chunk = first->first_chunk;
}

static void add_item(struct sheaf_listing_builder *b, uint32_t dir,
        const struct sheaf_listing_item *item)
{
        uint32_t index = (uint32_t)b->entry_count;
        struct sheaf_listing_entry e = plain_entry(item, index);
        uint32_t first = link_of(b, item, index);

        e.parent = dir;
        e.name_offset_bytes = store_bytes(b, item->name, item->name_len_bytes);
        e.name_len_bytes = (uint8_t)item->name_len_bytes;
        /* Known since prepare(): cannot fail. */
        (void)!find_owner(b, item->uid, item->gid, &e.owner);
        if (first != NONE) {
                b->further_links++;
                fill_from_link(b, &e, first);
        } else if (S_ISREG(item->mode)) {
                e.size_bytes = item->size_bytes;
                e.first_chunk = b->chunk_count;
                b->chunk_count += sheaf_chunk_count(item->size_bytes);
                b->payload_bytes += item->size_bytes;
        } else if (S_ISLNK(item->mode)) {
                e.size_bytes = item->target_len_bytes;
                e.target_offset_bytes =
                        store_bytes(b, item->target, item->target_len_bytes);
                e.target_len_bytes = (uint32_t)item->target_len_bytes;
        }
        if (S_ISREG(item->mode))
                e.file_ordinal = b->file_count++;
        b->entries[b->entry_count++] = e;
}

int sheaf_listing_builder_add_dir(struct sheaf_listing_builder *b, uint32_t dir,
        const struct sheaf_listing_item *items, size_t count)
{
        int rc;

        if (dir >= b->entry_count || !S_ISDIR(b->entries[dir].mode) ||
                b->entries[dir].child_count || (dir && dir <= b->last_dir))
                return -EINVAL;
        if (!count)
                return 0;
        rc = prepare(b, items, count);
        if (rc)
                return rc;
        b->entries[dir].first_child = (uint32_t)b->entry_count;
        b->entries[dir].child_count = (uint32_t)count;
        b->last_dir = dir;
        for (size_t i = 0; i < count; i++)
                add_item(b, dir, b->order[i]);
        return 0;
}

int sheaf_listing_builder_new(const struct sheaf_listing_item *root,
        struct sheaf_listing_builder **ret_builder)
{
        struct sheaf_listing_builder *b;
        int rc;

        if (!S_ISDIR(root->mode) || root->mtime_nsec > 999999999 ||
                root->ctime_nsec > 999999999)
                return -EINVAL;
        b = sheaf_new(struct sheaf_listing_builder, 1);
        if (!b)
                return -ENOMEM;
        rc = grow(&b->entries, &b->entry_cap, 1, sizeof(*b->entries));
        if (!rc) {
                b->entries[b->entry_count++] = plain_entry(root, 0);
                rc = find_owner(b, root->uid, root->gid, &b->entries[0].owner);
        }
        if (rc) {
                sheaf_listing_builder_free(b);
                return rc;
        }
        *ret_builder = b;
        return 0;
}

void sheaf_listing_builder_free(struct sheaf_listing_builder *b)
{
        if (!b)
                return;
        free(b->entries);
        free(b->names);
        free(b->owners);
        free(b->links);
        free(b->order);
        free(b);
}

void sheaf_listing_builder_free_p(struct sheaf_listing_builder **builder)
{
        sheaf_listing_builder_free(*builder);
        *builder = NULL;
}

uint32_t sheaf_listing_builder_next_dir(
        const struct sheaf_listing_builder *b, uint32_t after)
{
        for (size_t i = (size_t)after + 1; i < b->entry_count; i++) {
                if (S_ISDIR(b->entries[i].mode))
                        return (uint32_t)i;
        }
        return 0;
}

void sheaf_listing_builder_unreadable(
        struct sheaf_listing_builder *b, uint32_t dir)
{
        b->entries[dir].flags |= SHEAF_LISTING_UNREADABLE;
}

size_t sheaf_listing_builder_path(const struct sheaf_listing_builder *b,
        uint32_t index, char *buf, size_t cap_bytes)
{
        return sheaf_listing_join(b->entries, b->names, index, buf, cap_bytes);
}

void sheaf_listing_builder_totals(const struct sheaf_listing_builder *b,
        uint64_t *ret_payload_bytes, uint64_t *ret_further_links)
{
        *ret_payload_bytes = b->payload_bytes;
        *ret_further_links = b->further_links;
}

struct section_source {
        const void *data;
        uint64_t count;
        size_t elem_bytes;
};

static int write_sections(int fd, struct sheaf_listing_header *header,
        const struct section_source *source, size_t count)
{
        static const char pad[8];
        uint64_t at = sizeof(*header);
        int rc;

        for (size_t i = 0; i < count; i++) {
                header->section[i].offset_bytes = at;
                header->section[i].count = source[i].count;
                at += sheaf_round_up(
                        source[i].count * source[i].elem_bytes, sizeof(pad));
        }
        header->total_bytes = at;
        rc = sheaf_write_all(fd, header, sizeof(*header));
        for (size_t i = 0; i < count && !rc; i++) {
                size_t bytes = source[i].count * source[i].elem_bytes;

                rc = sheaf_write_all(fd, source[i].data, bytes);
                if (!rc)
                        rc = sheaf_write_all(fd, pad, -bytes % sizeof(pad));
        }
        return rc;
}

int sheaf_listing_builder_write(struct sheaf_listing_builder *b, int fd,
        uint64_t serial, const uint8_t uuid[16], uint64_t listed_ns)
{
        sheaf_autofree uint32_t *files = NULL;
        sheaf_autofree uint32_t *nodes = NULL;
        size_t file_count = 0, node_count = 0;
        struct sheaf_listing_header header = {
                .magic = SHEAF_LISTING_MAGIC,
                .layout = SHEAF_LISTING_LAYOUT,
                .entry_bytes = sizeof(struct sheaf_listing_entry),
                .serial = serial,
                .chunk_count = b->chunk_count,
                .payload_bytes = b->payload_bytes,
                .listed_ns = listed_ns,
        };

        if (!serial || serial > INT32_MAX)
                return -EINVAL;
        files = sheaf_new(uint32_t, b->file_count ? b->file_count : 1);
        nodes = sheaf_new(uint32_t, b->entry_count);
        if (!files || !nodes)
                return -ENOMEM;
        memcpy(header.uuid, uuid, sizeof(header.uuid));
        for (size_t i = 0; i < b->entry_count; i++) {
                struct sheaf_listing_entry *e = &b->entries[i];

                if (S_ISREG(e->mode))
                        files[file_count++] = (uint32_t)i;
                if (e->node == i)
                        nodes[node_count++] = (uint32_t)i;
                e->node = i ? sheaf_listing_node(serial, (uint32_t)e->node)
                            : SHEAF_LISTING_NODE_ROOT;
        }

        const struct section_source source[] = {
                { b->entries, b->entry_count, sizeof(*b->entries) },
                { b->names, b->names_bytes, 1 },
                { files, file_count, sizeof(*files) },
                { nodes, node_count, sizeof(*nodes) },
                { b->owners, b->owner_count, sizeof(*b->owners) },
        };

        return write_sections(fd, &header, source, SHEAF_ARRAY_LEN(source));
}

/* ---- inheritance ---- */

static bool same_identity(const struct sheaf_listing *prev, uint32_t p,
        const struct sheaf_listing *next, uint32_t n)
{
        const struct sheaf_listing_entry *a = &prev->entries[p];
        const struct sheaf_listing_entry *b = &next->entries[n];

        if ((a->mode & S_IFMT) != (b->mode & S_IFMT) ||
                a->origin_ino != b->origin_ino)
                return false;
        if (S_ISDIR(a->mode))
                return true;
        if (a->size_bytes != b->size_bytes || a->mtime_sec != b->mtime_sec ||
                a->mtime_nsec != b->mtime_nsec ||
                a->ctime_packed != b->ctime_packed)
                return false;
        return !S_ISLNK(a->mode) ||
               !memcmp(prev->names + a->target_offset_bytes,
                       next->names + b->target_offset_bytes, a->size_bytes);
}

/* Pairs the children of two directories of one path: a merge of two sorted
 * lists. Directories are paired by path, whatever their inodes. */
static void pair_children(const struct sheaf_listing *prev, uint32_t p_dir,
        const struct sheaf_listing *next, uint32_t n_dir, uint32_t *pair)
{
        uint32_t p = prev->entries[p_dir].first_child;
        uint32_t p_end = p + prev->entries[p_dir].child_count;
        uint32_t n = next->entries[n_dir].first_child;
        uint32_t n_end = n + next->entries[n_dir].child_count;

        while (p < p_end && n < n_end) {
                size_t p_len, n_len;
                const char *p_name = sheaf_listing_name(prev, p, &p_len);
                const char *n_name = sheaf_listing_name(next, n, &n_len);
                int order = memcmp(p_name, n_name, SHEAF_MIN(p_len, n_len));

                if (!order)
                        order = p_len < n_len ? -1 : p_len > n_len;
                if (!order)
                        pair[n] = p;
                p += order <= 0;
                n += order >= 0;
        }
}

struct inherit {
        const struct sheaf_listing *prev;
        struct sheaf_listing *next;
        uint32_t *pair;  /* by next's index: prev's index, then first link */
        uint64_t *node;  /* by next's index of the first link: new id or 0 */
        bool *prev_used; /* by prev's index of the first link */
};

static void choose_nodes(struct inherit *in,
        void (*same)(void *arg, uint32_t prev_index, uint32_t next_index),
        void *arg)
{
        const struct sheaf_listing *prev = in->prev, *next = in->next;

        for (uint32_t n = 0; n < next->entry_count; n++) {
                uint32_t p = in->pair[n], n_first = n, p_first = p;
                bool equal;

                if (p != NONE && S_ISDIR(next->entries[n].mode) &&
                        S_ISDIR(prev->entries[p].mode))
                        pair_children(prev, p, next, n, in->pair);
                /* Checked views: both ids are found. */
                if (next->entries[n].flags & SHEAF_LISTING_HARDLINK)
                        (void)!sheaf_listing_by_node(
                                next, next->entries[n].node, &n_first);
                in->pair[n] = n_first;
                equal = p != NONE && same_identity(prev, p, next, n);
                if (!equal || !n)
                        continue;
                if (prev->entries[p].flags & SHEAF_LISTING_HARDLINK)
                        (void)!sheaf_listing_by_node(
                                prev, prev->entries[p].node, &p_first);
                if (!in->node[n_first] && !in->prev_used[p_first]) {
                        in->node[n_first] = prev->entries[p].node;
                        in->prev_used[p_first] = true;
                }
                if (same && S_ISREG(next->entries[n].mode))
                        same(arg, p, n);
        }
}

static int compare_nodes(const void *a, const void *b, void *entries_p)
{
        const struct sheaf_listing_entry *entries = entries_p;
        uint64_t x = entries[*(const uint32_t *)a].node;
        uint64_t y = entries[*(const uint32_t *)b].node;

        return x < y ? -1 : x > y;
}

int sheaf_listing_inherit(const struct sheaf_listing *prev, void *next,
        struct sheaf_listing *next_view,
        void (*same)(void *arg, uint32_t prev_index, uint32_t next_index),
        void *arg)
{
        sheaf_autofree uint32_t *pair = NULL;
        sheaf_autofree uint64_t *node = NULL;
        sheaf_autofree bool *used = NULL;
        const struct sheaf_listing_span *span = next_view->header->section;
        struct sheaf_listing_entry *entries =
                (void *)((char *)next +
                         span[SHEAF_LISTING_ENTRIES].offset_bytes);
        uint32_t *nodes =
                (void *)((char *)next + span[SHEAF_LISTING_NODES].offset_bytes);
        uint32_t count = next_view->entry_count;

        if (next_view->header->serial <= prev->header->serial)
                return -EINVAL;
        pair = reallocarray(NULL, count, sizeof(*pair));
        node = sheaf_new(uint64_t, count);
        used = sheaf_new(bool, prev->entry_count);
        if (!pair || !node || !used)
                return -ENOMEM;
        memset(pair, 0xff, count * sizeof(*pair));
        pair[0] = 0;

        struct inherit in = { .prev = prev,
                .next = next_view,
                .pair = pair,
                .node = node,
                .prev_used = used };

        choose_nodes(&in, same, arg);
        for (uint32_t i = 1; i < count; i++) {
                if (node[pair[i]])
                        entries[i].node = node[pair[i]];
        }
        qsort_r(nodes, next_view->node_count, sizeof(*nodes), compare_nodes,
                entries);
        return 0;
}
