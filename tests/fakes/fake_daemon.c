/* SPDX-License-Identifier: Apache-2.0 */
/* The fake daemon: one thread, one lock around the arena.
 *
 *  1 memory is handed out once and never reused, so a pin cannot be broken
 *  2 extents are announced to every connection when they are made
 *
 * It fails the test by abort() where it is misused. */
#include "tests/fakes/fake_daemon.h"

#include "proto/wire.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#define CONNS_MAX   32
#define EXTENTS_MAX 256
#define PIPES_MAX   64
#define CHECK(x)                                                               \
        do {                                                                   \
                if (!(x)) {                                                    \
                        fprintf(stderr, "fake daemon: %s (line %d)\n", #x,     \
                                __LINE__);                                     \
                        abort();                                               \
                }                                                              \
        } while (0)

struct conn {
        int sock, hazard_fd;
        struct sheaf_hazard *hazard;
        uint32_t announced; /* extents told of */
        bool hello, attached;
};

struct fake_daemon {
        struct fake_knobs knobs;
        pthread_t thread;
        pthread_mutex_t lock; /* arena and table */
        char path[108];
        int listen_fd, wake_fd;
        _Atomic bool stop;
        struct fake_options options;
        struct conn conns[CONNS_MAX];
        int pipes[PIPES_MAX];
        size_t pipe_count;

        int listing_fd, table_fd;
        void *listing_block;
        size_t listing_bytes;
        struct sheaf_listing listing;
        _Atomic uint64_t *words;
        uint64_t generation;

        int extent_fd[EXTENTS_MAX], lock_fd[EXTENTS_MAX];
        uint8_t *extent[EXTENTS_MAX];
        uint32_t extents;
        uint64_t used_bytes; /* of the last extent */
};

static int memory(const char *name, uint64_t bytes, void **ret_map)
{
        int fd = memfd_create(name, MFD_CLOEXEC);

        CHECK(fd >= 0 && !ftruncate(fd, (off_t)bytes));
        *ret_map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(*ret_map != MAP_FAILED);
        return fd;
}

/* ---- dataset ---- */

static struct sheaf_listing_item item(
        const char *name, uint32_t mode, uint64_t size, const char *target)
{
        static uint64_t ino = 1000;

        return (struct sheaf_listing_item){
                .name = name,
                .name_len_bytes = strlen(name),
                .target = target,
                .target_len_bytes = target ? strlen(target) : 0,
                .size_bytes = target ? strlen(target) : size,
                .origin_ino = ino++,
                .origin_dev = 1,
                .mtime_sec = 1700000000,
                .ctime_sec = 1700000000,
                .mode = mode,
                .nlink = 1,
        };
}

static void make_listing(struct fake_daemon *fake)
{
        size_t n = fake->options.n, count = n + 4;
        struct sheaf_listing_item root = item("", S_IFDIR | 0755, 0, NULL);
        struct sheaf_listing_item *items = calloc(count, sizeof(*items));
        char(*names)[24] = calloc(n ? n : 1, sizeof(*names));
        struct sheaf_listing_builder *builder;
        uint8_t uuid[16] = "fake-version-01";
        struct stat st;

        CHECK(items && names);
        for (size_t i = 0; i < n; i++) {
                snprintf(names[i], sizeof(names[i]), "f%04zu", i);
                items[i] = item(
                        names[i], S_IFREG | 0644, fake->options.sizes[i], NULL);
        }
        items[n] = item("dir", S_IFDIR | 0755, 0, NULL);
        items[n + 1] = item("link", S_IFLNK | 0777, 0, "dir/inner");
        items[n + 2] = item("loop", S_IFLNK | 0777, 0, "loop");
        items[n + 3] = item("out", S_IFLNK | 0777, 0, "../../etc/passwd");

        struct sheaf_listing_item inner[2] = {
                item("inner", S_IFREG | 0640, 100, NULL),
                item("up", S_IFLNK | 0777, 0, "../f0000"),
        };
        uint32_t dir;

        CHECK(!sheaf_listing_builder_new(&root, &builder));
        CHECK(!sheaf_listing_builder_add_dir(builder, 0, items, count));
        dir = sheaf_listing_builder_next_dir(builder, 0);
        CHECK(!sheaf_listing_builder_add_dir(builder, dir, inner, 2));
        fake->listing_fd = memfd_create("listing", MFD_CLOEXEC);
        CHECK(!sheaf_listing_builder_write(
                builder, fake->listing_fd, 1, uuid, 1700000000));
        sheaf_listing_builder_free(builder);
        free(items);
        free(names);
        CHECK(!fstat(fake->listing_fd, &st));
        fake->listing_bytes = (size_t)st.st_size;
        fake->listing_block = mmap(NULL, fake->listing_bytes, PROT_READ,
                MAP_SHARED, fake->listing_fd, 0);
        CHECK(!sheaf_listing_open(fake->listing_block, fake->listing_bytes,
                true, &fake->listing));
}

static void make_table(struct fake_daemon *fake)
{
        struct sheaf_table_header *header;
        void *map;

        fake->table_fd = memory("table",
                sheaf_table_bytes(fake->listing.chunk_count) + 4096, &map);
        header = map;
        header->magic = SHEAF_TABLE_MAGIC;
        header->layout = SHEAF_SHM_LAYOUT;
        header->words_offset_bytes = SHEAF_TABLE_WORDS_OFFSET;
        header->word_count = fake->listing.chunk_count;
        fake->words =
                (_Atomic uint64_t *)((char *)map + SHEAF_TABLE_WORDS_OFFSET);
}

/* ---- arena ---- */

static void send_msg(
        struct conn *conn, const Sheaf__Envelope *env, const int *fds, size_t n)
{
        if (sheaf_wire_send(conn->sock, env, fds, n))
                shutdown(conn->sock, SHUT_RDWR);
}

static void announce(struct fake_daemon *fake, struct conn *conn)
{
        while (conn->attached && conn->announced < fake->extents) {
                Sheaf__Extents body = SHEAF__EXTENTS__INIT;
                Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
                uint32_t i = conn->announced++;
                int fds[2] = { fake->extent_fd[i], fake->lock_fd[i] };

                if (fds[0] < 0)
                        continue;
                body.arena = 7;
                body.n_extent = 1;
                body.extent = &i;
                body.event = i + 1;
                env.body_case = SHEAF__ENVELOPE__BODY_EXTENTS;
                env.extents = &body;
                send_msg(conn, &env, fds, 2);
        }
}

static void new_extent(struct fake_daemon *fake)
{
        void *map;

        CHECK(fake->extents < EXTENTS_MAX);
        fake->extent_fd[fake->extents] =
                memory("extent", fake->options.extent_bytes, &map);
        fake->lock_fd[fake->extents] = memfd_create("lock", MFD_CLOEXEC);
        fake->extent[fake->extents++] = map;
        fake->used_bytes = 0;
        for (size_t i = 0; i < CONNS_MAX; i++)
                if (fake->conns[i].sock >= 0)
                        announce(fake, &fake->conns[i]);
}

static void make_bytes(
        uint8_t *dst, uint32_t entry, uint64_t offset, uint64_t len)
{
        for (uint64_t i = 0; i < len; i++)
                dst[i] = fake_byte(entry, offset + i);
}

static void make_resident(
        struct fake_daemon *fake, uint32_t entry, uint64_t index)
{
        const struct sheaf_listing_entry *e = &fake->listing.entries[entry];
        uint64_t len = sheaf_chunk_len(e->size_bytes, index);
        _Atomic uint64_t *word = &fake->words[e->first_chunk + index];

        if (atomic_load(word))
                return;
        if (!fake->extents ||
                fake->used_bytes + len > fake->options.extent_bytes)
                new_extent(fake);
        make_bytes(fake->extent[fake->extents - 1] + fake->used_bytes, entry,
                index * SHEAF_CHUNK_BYTES_MAX, len);
        atomic_store(
                word, sheaf_word(++fake->generation,
                              (fake->extents - 1) * fake->options.extent_bytes +
                                      fake->used_bytes));
        fake->used_bytes += sheaf_round_up(len, SHEAF_BLOCK_ALIGN);
}

void fake_evict_all(struct fake_daemon *fake)
{
        pthread_mutex_lock(&fake->lock);
        for (uint64_t i = 0; i < fake->listing.chunk_count; i++)
                atomic_store(&fake->words[i], 0);
        pthread_mutex_unlock(&fake->lock);
}

void fake_fill(struct fake_daemon *fake)
{
        pthread_mutex_lock(&fake->lock);
        for (uint32_t i = 0; i < fake->listing.file_count; i++) {
                uint32_t entry = fake->listing.files[i];
                uint64_t n = sheaf_chunk_count(
                        fake->listing.entries[entry].size_bytes);

                for (uint64_t c = 0; c < n; c++)
                        make_resident(fake, entry, c);
        }
        pthread_mutex_unlock(&fake->lock);
}

uint64_t fake_pins(struct fake_daemon *fake)
{
        uint64_t pins = 0;

        pthread_mutex_lock(&fake->lock);
        for (size_t i = 0; i < CONNS_MAX; i++) {
                const struct sheaf_hazard *h = fake->conns[i].hazard;

                for (size_t s = 0; h && s < SHEAF_HAZARD_SLOTS; s++)
                        pins += atomic_load(&h->slot[s]) != 0;
        }
        pthread_mutex_unlock(&fake->lock);
        return pins;
}

static void drop_extent(struct fake_daemon *fake, uint32_t extent)
{
        uint64_t from = extent * fake->options.extent_bytes;

        for (uint64_t i = 0; i < fake->listing.chunk_count; i++) {
                uint64_t at =
                        sheaf_word_offset_bytes(atomic_load(&fake->words[i]));

                if (at >= from && at < from + fake->options.extent_bytes)
                        atomic_store(&fake->words[i], 0);
        }
        sheaf_close_p(&fake->extent_fd[extent]);
        if (extent + 1 == fake->extents)
                fake->used_bytes = fake->options.extent_bytes;
        for (size_t i = 0; i < CONNS_MAX; i++) {
                Sheaf__ExtentDropped body = SHEAF__EXTENT_DROPPED__INIT;
                Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;

                if (fake->conns[i].sock < 0 ||
                        fake->conns[i].announced <= extent)
                        continue;
                body.arena = 7;
                body.extent = extent;
                env.body_case = SHEAF__ENVELOPE__BODY_EXTENT_DROPPED;
                env.extent_dropped = &body;
                send_msg(&fake->conns[i], &env, NULL, 0);
        }
}

/* ---- requests ---- */

static void reply_error(
        struct conn *conn, uint64_t id, int err, const char *text)
{
        Sheaf__Error body = SHEAF__ERROR__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;

        body.errno_value = err;
        body.message = (char *)text;
        env.id = id;
        env.body_case = SHEAF__ENVELOPE__BODY_ERROR;
        env.error = &body;
        send_msg(conn, &env, NULL, 0);
}

static void reply_done(struct conn *conn, uint64_t id)
{
        Sheaf__Done body = SHEAF__DONE__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;

        env.id = id;
        env.body_case = SHEAF__ENVELOPE__BODY_DONE;
        env.done = &body;
        send_msg(conn, &env, NULL, 0);
}

static void on_hello(struct fake_daemon *fake, struct conn *conn, uint64_t id)
{
        Sheaf__Welcome body = SHEAF__WELCOME__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        uint8_t instance[16] = { 1 };

        fake->knobs.hellos++;
        if (fake->knobs.mute_hello)
                return;
        body.layout = (uint32_t)fake->knobs.layout;
        body.deadline_ms = fake->options.deadline_ms;
        body.version = (char *)"fake";
        body.instance.data = instance;
        body.instance.len = sizeof(instance);
        env.id = id;
        env.body_case = SHEAF__ENVELOPE__BODY_WELCOME;
        env.welcome = &body;
        send_msg(conn, &env, NULL, 0);
}

static void attach(struct fake_daemon *fake, struct conn *conn, uint64_t id)
{
        Sheaf__ArenaOpened body = SHEAF__ARENA_OPENED__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        void *map;

        conn->hazard_fd = memory("hazard", sizeof(struct sheaf_hazard), &map);
        conn->hazard = map;
        conn->hazard->magic = SHEAF_HAZARD_MAGIC;
        conn->hazard->layout = SHEAF_SHM_LAYOUT;
        conn->hazard->slot_count = SHEAF_HAZARD_SLOTS;
        body.arena = 7;
        body.extent_bytes = fake->options.extent_bytes;
        body.range_bytes = fake->options.extent_bytes * EXTENTS_MAX;
        body.grant_bytes = fake->options.grant_bytes;
        env.id = id;
        env.more = true;
        env.body_case = SHEAF__ENVELOPE__BODY_ARENA_OPENED;
        env.arena_opened = &body;
        send_msg(conn, &env, &conn->hazard_fd, 1);
        conn->attached = true;
        announce(fake, conn);
}

static void on_open(struct fake_daemon *fake, struct conn *conn, uint64_t id,
        const Sheaf__OpenDataset *request)
{
        Sheaf__DatasetOpened body = SHEAF__DATASET_OPENED__INIT;
        Sheaf__DatasetInfo info = SHEAF__DATASET_INFO__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        struct sheaf_meter *meter;
        void *map;
        int fds[3];

        fake->knobs.opens++;
        if (fake->knobs.open_errno) {
                reply_error(conn, id, fake->knobs.open_errno,
                        "dataset fake is detached; present its origin again");
                return;
        }
        if (strcmp(request->name, "fake") != 0) {
                reply_error(conn, id, ENOENT, "no such dataset");
                return;
        }
        if (!conn->attached)
                attach(fake, conn, id);
        fds[0] = fake->listing_fd;
        fds[1] = fake->table_fd;
        fds[2] = memory("meter", sizeof(*meter), &map);
        meter = map;
        meter->magic = SHEAF_METER_MAGIC;
        meter->layout = SHEAF_SHM_LAYOUT;
        munmap(map, sizeof(*meter));
        info.name = (char *)"fake";
        info.domain = (char *)"group:27";
        body.handle = 40 + (uint32_t)fake->knobs.opens;
        body.arena = 7;
        body.info = &info;
        env.id = id;
        env.body_case = SHEAF__ENVELOPE__BODY_DATASET_OPENED;
        env.dataset_opened = &body;
        send_msg(conn, &env, fds, 3);
        close(fds[2]);
}

static void send_copy(struct fake_daemon *fake, struct conn *conn, uint64_t id,
        const Sheaf__Fetch *request)
{
        Sheaf__Fetched body = SHEAF__FETCHED__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        uint64_t at = 0;
        void *map;
        int fd;

        fd = memory("copy",
                SHEAF_MAX(request->n_item, (size_t)1) * SHEAF_CHUNK_BYTES_MAX,
                &map);
        for (size_t i = 0; i < request->n_item; i++) {
                uint32_t entry = (uint32_t)(request->item[i] >> 24);
                uint64_t index = request->item[i] & 0xffffff;
                uint64_t len =
                        sheaf_listing_chunk_len(&fake->listing, entry, index);

                make_bytes((uint8_t *)map + at, entry,
                        index * SHEAF_CHUNK_BYTES_MAX, len);
                at += sheaf_round_up(len, SHEAF_BLOCK_ALIGN);
        }
        munmap(map,
                SHEAF_MAX(request->n_item, (size_t)1) * SHEAF_CHUNK_BYTES_MAX);
        body.copied = true;
        fake->knobs.copies++;
        env.id = id;
        env.body_case = SHEAF__ENVELOPE__BODY_FETCHED;
        env.fetched = &body;
        send_msg(conn, &env, &fd, 1);
        close(fd);
}

static void on_fetch(struct fake_daemon *fake, struct conn *conn, uint64_t id,
        const Sheaf__Fetch *request)
{
        Sheaf__Fetched body = SHEAF__FETCHED__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        Sheaf__Failure *failures =
                calloc(request->n_item + 1, sizeof(*failures));
        Sheaf__Failure **list = calloc(request->n_item + 1, sizeof(*list));

        CHECK(failures && list);
        fake->knobs.fetches++;
        fake->knobs.items += request->n_item;
        for (size_t i = 0; i < request->n_item && !request->copy; i++) {
                uint32_t entry = (uint32_t)(request->item[i] >> 24);
                int err = fake->knobs.fetch_errno;

                if (entry == fake->knobs.bad_entry)
                        err = EIO;
                if (!err) {
                        make_resident(fake, entry, request->item[i] & 0xffffff);
                        continue;
                }
                sheaf__failure__init(&failures[body.n_failure]);
                failures[body.n_failure].position = (uint32_t)i;
                failures[body.n_failure].errno_value = err;
                failures[body.n_failure].message =
                        (char *)"the origin cannot be read";
                list[body.n_failure] = &failures[body.n_failure];
                body.n_failure++;
        }
        body.failure = list;
        env.id = id;
        env.body_case = SHEAF__ENVELOPE__BODY_FETCHED;
        env.fetched = &body;
        if (fake->knobs.forget)
                for (uint64_t i = 0; i < fake->listing.chunk_count; i++)
                        atomic_store(&fake->words[i], 0);
        fake->knobs.hints += request->hint;
        if (request->copy)
                send_copy(fake, conn, id, request);
        else
                send_msg(conn, &env, NULL, 0);
        free(failures);
        free(list);
}

static void answer_small(
        struct fake_daemon *fake, struct conn *conn, const Sheaf__Envelope *in)
{
        Sheaf__CachedAnswer cached = SHEAF__CACHED_ANSWER__INIT;
        Sheaf__Digest digest = SHEAF__DIGEST__INIT;
        Sheaf__Envelope env = SHEAF__ENVELOPE__INIT;
        uint8_t bytes[32];

        (void)fake;
        env.id = in->id;
        if (in->body_case == SHEAF__ENVELOPE__BODY_CACHED_QUERY) {
                cached.cached_bytes = in->cached_query->path[0].len;
                env.body_case = SHEAF__ENVELOPE__BODY_CACHED_ANSWER;
                env.cached_answer = &cached;
        } else {
                memset(bytes, (int)in->get_digest->entry, sizeof(bytes));
                digest.known = in->get_digest->entry != 0;
                digest.digest.data = bytes;
                digest.digest.len = sizeof(bytes);
                env.body_case = SHEAF__ENVELOPE__BODY_DIGEST;
                env.digest = &digest;
        }
        send_msg(conn, &env, NULL, 0);
}

static void on_message(
        struct fake_daemon *fake, struct conn *conn, struct sheaf_wire_msg *msg)
{
        const Sheaf__Envelope *env = msg->env;

        if (env->body_case == SHEAF__ENVELOPE__BODY_HELLO) {
                on_hello(fake, conn, env->id);
                return;
        }
        if (fake->knobs.mute)
                return;
        switch (env->body_case) {
        case SHEAF__ENVELOPE__BODY_OPEN_DATASET:
                on_open(fake, conn, env->id, env->open_dataset);
                break;
        case SHEAF__ENVELOPE__BODY_FETCH:
                on_fetch(fake, conn, env->id, env->fetch);
                break;
        case SHEAF__ENVELOPE__BODY_FORK_NOTE:
                if (fake->knobs.fork_errno) {
                        reply_error(conn, env->id, fake->knobs.fork_errno,
                                "the fork cannot be tracked");
                        break;
                }
                CHECK(msg->fd_count == 1 && fake->pipe_count < PIPES_MAX);
                fake->pipes[fake->pipe_count++] = sheaf_wire_take_fd(msg, 0);
                fake->knobs.fork_notes++;
                reply_done(conn, env->id);
                break;
        case SHEAF__ENVELOPE__BODY_UNMAPPED:
                fake->knobs.unmapped++;
                break;
        case SHEAF__ENVELOPE__BODY_CANCEL:
                fake->knobs.cancels++;
                break;
        case SHEAF__ENVELOPE__BODY_CLOSE_DATASET:
                fake->knobs.closed++;
                break;
        case SHEAF__ENVELOPE__BODY_CACHED_QUERY:
        case SHEAF__ENVELOPE__BODY_GET_DIGEST:
                answer_small(fake, conn, env);
                break;
        case SHEAF__ENVELOPE__BODY_DONE:
                break;
        default:
                reply_error(conn, env->id, EOPNOTSUPP, "not in the fake");
        }
}

/* ---- loop ---- */

static void hang_up(struct conn *conn)
{
        sheaf_close_p(&conn->sock);
        if (conn->hazard)
                munmap(conn->hazard, sizeof(*conn->hazard));
        sheaf_close_p(&conn->hazard_fd);
        *conn = (struct conn){ .sock = -1, .hazard_fd = -1 };
}

static void accept_one(struct fake_daemon *fake)
{
        int sock = accept4(
                fake->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        for (size_t i = 0; sock >= 0 && i < CONNS_MAX; i++)
                if (fake->conns[i].sock < 0) {
                        fake->conns[i].sock = sock;
                        return;
                }
        CHECK(sock < 0);
}

static void serve_conn(struct fake_daemon *fake, struct conn *conn)
{
        struct sheaf_wire_msg msg = { 0 };
        int rc = sheaf_wire_recv(conn->sock, &msg);

        if (rc == -EAGAIN)
                return;
        if (rc != 1) {
                hang_up(conn);
                return;
        }
        on_message(fake, conn, &msg);
        sheaf_wire_msg_free(&msg);
}

static void *serve(void *arg)
{
        struct fake_daemon *fake = arg;

        while (!fake->stop) {
                struct pollfd fds[2 + CONNS_MAX + PIPES_MAX];
                eventfd_t ignored;
                int drop;

                fds[0] = (struct pollfd){ fake->listen_fd, POLLIN, 0 };
                fds[1] = (struct pollfd){ fake->wake_fd, POLLIN, 0 };
                for (size_t i = 0; i < CONNS_MAX; i++)
                        fds[2 + i] = (struct pollfd){
                                fake->knobs.deaf ? -1 : fake->conns[i].sock,
                                POLLIN, 0
                        };
                for (size_t i = 0; i < PIPES_MAX; i++)
                        fds[2 + CONNS_MAX + i] =
                                (struct pollfd){ fake->pipes[i], 0, 0 };
                poll(fds, SHEAF_ARRAY_LEN(fds), 5);
                pthread_mutex_lock(&fake->lock);
                eventfd_read(fake->wake_fd, &ignored);
                if (fds[0].revents)
                        accept_one(fake);
                for (size_t i = 0; i < CONNS_MAX; i++)
                        if (fds[2 + i].revents && !fake->knobs.deaf)
                                serve_conn(fake, &fake->conns[i]);
                for (size_t i = 0; i < PIPES_MAX; i++)
                        if (fds[2 + CONNS_MAX + i].revents & POLLHUP) {
                                sheaf_close_p(&fake->pipes[i]);
                                fake->knobs.forks_ended++;
                        }
                drop = atomic_exchange(&fake->knobs.drop, -1);
                if (drop >= 0)
                        drop_extent(fake, (uint32_t)drop);
                pthread_mutex_unlock(&fake->lock);
        }
        return NULL;
}

struct fake_daemon *fake_start(
        const char *path, const struct fake_options *options)
{
        struct fake_daemon *fake = calloc(1, sizeof(*fake));

        CHECK(fake);
        fake->options = *options;
        if (!fake->options.extent_bytes)
                fake->options.extent_bytes = 16 * SHEAF_MIB;
        if (!fake->options.grant_bytes)
                fake->options.grant_bytes = 64 * SHEAF_MIB;
        if (!fake->options.deadline_ms)
                fake->options.deadline_ms = FAKE_DEADLINE_MS;
        fake->knobs.bad_entry = -1;
        fake->knobs.drop = -1;
        fake->knobs.layout = SHEAF_SHM_LAYOUT;
        for (size_t i = 0; i < CONNS_MAX; i++)
                fake->conns[i].sock = fake->conns[i].hazard_fd = -1;
        for (size_t i = 0; i < PIPES_MAX; i++)
                fake->pipes[i] = -1;
        for (size_t i = 0; i < EXTENTS_MAX; i++)
                fake->extent_fd[i] = fake->lock_fd[i] = -1;
        CHECK(!pthread_mutex_init(&fake->lock, NULL));
        make_listing(fake);
        make_table(fake);
        fake->listen_fd = sheaf_wire_listen(path, 0600);
        CHECK(fake->listen_fd >= 0);
        fake->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        CHECK(!pthread_create(&fake->thread, NULL, serve, fake));
        return fake;
}

void fake_stop(struct fake_daemon *fake)
{
        fake->stop = true;
        eventfd_write(fake->wake_fd, 1);
        pthread_join(fake->thread, NULL);
        close(fake->listen_fd);
        close(fake->wake_fd);
        for (size_t i = 0; i < CONNS_MAX; i++)
                hang_up(&fake->conns[i]);
        for (size_t i = 0; i < PIPES_MAX; i++)
                sheaf_close_p(&fake->pipes[i]);
        for (uint32_t i = 0; i < fake->extents; i++) {
                munmap(fake->extent[i], fake->options.extent_bytes);
                sheaf_close_p(&fake->extent_fd[i]);
                sheaf_close_p(&fake->lock_fd[i]);
        }
        munmap((char *)fake->words - SHEAF_TABLE_WORDS_OFFSET,
                sheaf_table_bytes(fake->listing.chunk_count) + 4096);
        munmap(fake->listing_block, fake->listing_bytes);
        close(fake->table_fd);
        close(fake->listing_fd);
        pthread_mutex_destroy(&fake->lock);
        free(fake);
}

struct fake_knobs *fake_knobs(struct fake_daemon *fake)
{
        return &fake->knobs;
}
