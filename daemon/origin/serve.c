/* SPDX-License-Identifier: Apache-2.0 */
/* The reader's work: requests in, worker threads, replies out.
 *
 *  1 the main thread only receives and ticks; it never touches the origin
 *  2 results wait for others to travel with, but never behind a read: the
 *    last worker to find no job sends them, and every tick does
 *  3 while reads are fast only as many workers run as there are cores, since
 *    waking one costs as much as a small read; where they wait for something
 *    all of them run. A tick without a job begun wakes the others too
 *  4 a listing runs in a thread of its own, one at a time
 *
 *  5 a slot is used again only after its result went to the daemon and came
 *    back as a new request. C knows no order between two processes, so the
 *    outbox's lock carries it: given back before the result is sent, taken
 *    after the request is received
 *
 * Locks: jobs.lock and outbox.lock, never both. */
#include "daemon/origin/reader.h"
#include "daemon/origin/origin.h"
#include "daemon/origin/reader.pb-c.h"
#include "proto/wire.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#define JOBS_MAX (2 * SHEAF_ORIGIN_SLOTS)
/* A read of a small file that takes longer than this waits for a disk or a
 * server; one from the page cache takes a tenth of it. */
#define SLOW_NS        (300 * SHEAF_NS_PER_MS / 1000)
#define TICK_MS        1
#define CROWD_PAUSE_NS (5 * SHEAF_NS_PER_MS)
/* Results that travel together, and how long the first waits for them. */
#define TOGETHER    16
#define TOGETHER_NS (200 * SHEAF_NS_PER_MS / 1000)

struct job {
        struct job *next;
        uint64_t id;
        uint32_t slot;
        struct sheaf_reader_chunk chunk;
        char path[]; /* chunk.path */
};

static struct {
        pthread_mutex_t lock;
        pthread_cond_t more;
        struct job *first, **last;
        int workers, cores; /* constant */
        int idle;           /* workers that wait */
        uint64_t begun;
        int64_t mean_ns;            /* of a read, the last ones most */
        _Atomic size_t queued;      /* read without the lock as a hint */
        _Atomic size_t outstanding; /* taken in and not yet answered */
} jobs = { .lock = PTHREAD_MUTEX_INITIALIZER,
        .more = PTHREAD_COND_INITIALIZER,
        .last = &jobs.first };

struct result {
        uint64_t id;
        int rc;
        uint64_t ctime_packed;
};

static struct {
        pthread_mutex_t lock;
        struct result results[JOBS_MAX];
        size_t count;
        int64_t first_ns; /* when the oldest was put in */
        bool sending;
} outbox = { .lock = PTHREAD_MUTEX_INITIALIZER };

static char *buffers;

static void send_reply(SheafReader__Reply *reply, int fd)
{
        const struct timespec pause = { .tv_nsec = CROWD_PAUSE_NS };
        size_t len = sheaf_reader__reply__get_packed_size(reply);
        uint8_t stack[8192];
        int rc;

        /* The largest reply has two paths of 256 bytes or JOBS_MAX results
         * of at most 40. */
        if (len > sizeof(stack))
                abort();
        sheaf_reader__reply__pack(reply, stack);
        /* Descriptors of this user that lie in sockets, whoever sent them, are
         * held against our limit of open files. They pass; a daemon that waits
         * no longer ends us. */
        while ((rc = sheaf_wire_send_record(SHEAF_READER_FD_SOCK, stack, len,
                        &fd, fd >= 0)) == -ETOOMANYREFS)
                nanosleep(&pause, NULL);
        if (rc)
                _exit(0); /* the daemon is gone */
}

static void send_results(const struct result *results, size_t count)
{
        SheafReader__ReadDone done[JOBS_MAX], *done_p[JOBS_MAX];
        SheafReader__ReadsDone batch = SHEAF_READER__READS_DONE__INIT;
        SheafReader__Reply reply = SHEAF_READER__REPLY__INIT;

        for (size_t i = 0; i < count; i++) {
                sheaf_reader__read_done__init(&done[i]);
                done[i].id = results[i].id;
                done[i].rc = results[i].rc;
                done[i].new_ctime_packed = results[i].ctime_packed;
                done_p[i] = &done[i];
        }
        batch.read = done_p;
        batch.n_read = count;
        reply.body_case = SHEAF_READER__REPLY__BODY_READS_DONE;
        reply.reads_done = &batch;
        send_reply(&reply, -1);
}

static int64_t now_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return ts.tv_sec * SHEAF_NS_PER_SEC + ts.tv_nsec;
}

/* Sends what there is, unless somebody does already. */
static void flush_locked(void)
{
        struct result batch[JOBS_MAX];

        while (!outbox.sending && outbox.count) {
                size_t count = outbox.count;

                memcpy(batch, outbox.results, count * sizeof(*batch));
                outbox.count = 0;
                outbox.sending = true;
                pthread_mutex_unlock(&outbox.lock);
                send_results(batch, count);
                atomic_fetch_sub(&jobs.outstanding, count);
                pthread_mutex_lock(&outbox.lock);
                outbox.sending = false;
        }
}

static void post(const struct result *result, int64_t at_ns)
{
        pthread_mutex_lock(&outbox.lock);
        if (outbox.count == JOBS_MAX)
                abort(); /* the daemon has fewer slots than that */
        if (!outbox.count)
                outbox.first_ns = at_ns;
        outbox.results[outbox.count++] = *result;
        if (outbox.count >= TOGETHER || !atomic_load(&jobs.queued) ||
                at_ns - outbox.first_ns >= TOGETHER_NS)
                flush_locked();
        pthread_mutex_unlock(&outbox.lock);
}

static struct job *next_job(int64_t spent_ns)
{
        struct job *job;

        pthread_mutex_lock(&jobs.lock);
        jobs.mean_ns += (spent_ns - jobs.mean_ns) / 8;
        while (!jobs.first) {
                jobs.idle++;
                pthread_cond_wait(&jobs.more, &jobs.lock);
                jobs.idle--;
        }
        job = jobs.first;
        jobs.first = job->next;
        if (!jobs.first)
                jobs.last = &jobs.first;
        jobs.begun++;
        atomic_fetch_sub(&jobs.queued, 1);
        pthread_mutex_unlock(&jobs.lock);
        return job;
}

static void *work(void *unused)
{
        int64_t spent_ns = 0;

        (void)unused;
        for (;;) {
                struct job *job = next_job(spent_ns);
                struct result result = { .id = job->id };
                int64_t start_ns = now_ns(), end_ns;

                result.rc =
                        sheaf_reader_chunk(SHEAF_READER_FD_ROOT, &job->chunk,
                                buffers + job->slot * SHEAF_CHUNK_BYTES_MAX,
                                &result.ctime_packed);
                free(job);
                end_ns = now_ns();
                spent_ns = end_ns - start_ns;
                post(&result, end_ns);
        }
        return NULL;
}

static void wake(int count)
{
        while (count-- > 0)
                pthread_cond_signal(&jobs.more);
}

/* How many workers to wake for what is queued. Called with the lock. */
static int wanted_locked(void)
{
        int most = jobs.mean_ns > SLOW_NS ? jobs.workers : jobs.cores;
        int running = jobs.workers - jobs.idle;

        return (int)SHEAF_MIN((size_t)SHEAF_MAX(most - running, 0),
                atomic_load(&jobs.queued));
}

/* Now and then while there is work: nothing waits behind a read that hangs. */
static void tick(void)
{
        static uint64_t begun_before;
        bool stuck;

        pthread_mutex_lock(&outbox.lock);
        flush_locked();
        pthread_mutex_unlock(&outbox.lock);

        pthread_mutex_lock(&jobs.lock);
        stuck = jobs.first && jobs.idle && jobs.begun == begun_before;
        begun_before = jobs.begun;
        pthread_mutex_unlock(&jobs.lock);
        if (stuck)
                pthread_cond_broadcast(&jobs.more);
}

static struct sheaf_reader_identity identity_of(
        const SheafReader__Identity *identity)
{
        return (struct sheaf_reader_identity){
                .ino = identity->ino,
                .size_bytes = identity->size_bytes,
                .ctime_packed = identity->ctime_packed,
                .mtime_sec = identity->mtime_sec,
                .mtime_nsec = identity->mtime_nsec,
        };
}

static struct job *make_job(const SheafReader__Read *read)
{
        struct job *job = malloc(sizeof(*job) + read->path.len + 1);

        if (!job)
                return NULL;
        memcpy(job->path, read->path.data, read->path.len);
        job->path[read->path.len] = 0;
        job->next = NULL;
        job->id = read->id;
        job->slot = read->slot;
        job->chunk = (struct sheaf_reader_chunk){
                .path = job->path,
                .follow = read->follow,
                .offset_bytes = read->offset_bytes,
                .len_bytes = read->len_bytes,
                .identity = identity_of(read->identity),
        };
        return job;
}

static void take_reads(const SheafReader__Reads *reads)
{
        struct job *first = NULL, **last = &first;
        size_t count = 0;
        int woken;

        atomic_fetch_add(&jobs.outstanding, reads->n_read);
        pthread_mutex_lock(&outbox.lock); /* invariant 5 */
        pthread_mutex_unlock(&outbox.lock);
        for (size_t i = 0; i < reads->n_read; i++) {
                const SheafReader__Read *read = reads->read[i];
                struct job *job;

                job = make_job(read);
                if (!job) {
                        post(&(struct result){ read->id, -ENOMEM, 0 },
                                now_ns());
                        continue;
                }
                *last = job;
                last = &job->next;
                count++;
        }
        if (!first)
                return;
        pthread_mutex_lock(&jobs.lock);
        *jobs.last = first;
        jobs.last = last;
        atomic_fetch_add(&jobs.queued, count);
        woken = wanted_locked();
        pthread_mutex_unlock(&jobs.lock);
        wake(woken);
}

/* ---- listing ---- */

static struct {
        pthread_t thread;
        bool started;
        atomic_bool cancelled;
        uint64_t id;
        struct sheaf_reader_walk walk;
} lister;

static void send_progress(void *arg, uint64_t entries)
{
        SheafReader__Listing listing = SHEAF_READER__LISTING__INIT;
        SheafReader__Reply reply = SHEAF_READER__REPLY__INIT;

        (void)arg;
        listing.id = lister.id;
        listing.entries = entries;
        reply.body_case = SHEAF_READER__REPLY__BODY_LISTING;
        reply.listing = &listing;
        send_reply(&reply, -1);
}

static void *list(void *unused)
{
        SheafReader__Listed listed = SHEAF_READER__LISTED__INIT;
        SheafReader__Reply reply = SHEAF_READER__REPLY__INIT;
        struct sheaf_reader_summary s;
        sheaf_autofd int memfd = -1;

        (void)unused;
        listed.id = lister.id;
        listed.rc = sheaf_reader_walk(&lister.walk, &s, &memfd);
        listed.dirs = s.dirs;
        listed.files = s.files;
        listed.links = s.links;
        listed.hard_links = s.hard_links;
        listed.bytes = s.bytes;
        listed.escaping_links = s.escaping_links;
        listed.followed_links = s.followed_links;
        listed.skipped_special = s.skipped_special;
        listed.skipped_names = s.skipped_names;
        listed.unreadable_dirs = s.unreadable_dirs;
        listed.unreadable_files = s.unreadable_files;
        listed.first_escaping.data = (uint8_t *)s.first_escaping;
        listed.first_escaping.len = strlen(s.first_escaping);
        listed.first_unreadable.data = (uint8_t *)s.first_unreadable;
        listed.first_unreadable.len = strlen(s.first_unreadable);
        reply.body_case = SHEAF_READER__REPLY__BODY_LISTED;
        reply.listed = &listed;
        send_reply(&reply, memfd);
        return NULL;
}

/* Waits for a cancelled walk to notice; one that hangs is the daemon's to
 * kill, by the deadline of the new one. */
static void take_list(const SheafReader__List *request)
{
        if (lister.started)
                pthread_join(lister.thread, NULL);
        atomic_store(&lister.cancelled, false);
        lister.id = request->id;
        lister.walk = (struct sheaf_reader_walk){
                .root = SHEAF_READER_FD_ROOT,
                .follow = request->follow,
                .serial = request->serial,
                .cancelled = &lister.cancelled,
                .progress = send_progress,
        };
        memcpy(lister.walk.uuid, request->uuid.data, request->uuid.len);
        if (pthread_create(&lister.thread, NULL, list, NULL))
                _exit(1); /* the daemon starts another reader */
        lister.started = true;
}

/* ---- probe ---- */

/* Files of a tree in use change while no daemon runs: that is no other tree,
 * and each read compares its file. */
static int probe(const SheafReader__Probe *request)
{
        size_t others = 0;
        struct stat st;

        if (fstat(SHEAF_READER_FD_ROOT, &st))
                return -errno;
        if (st.st_ino != request->root_ino)
                return -ESTALE;
        for (size_t i = 0; i < request->n_sample; i++) {
                const SheafReader__Sample *sample = request->sample[i];
                sheaf_autofree char *path = strndup(
                        (const char *)sample->path.data, sample->path.len);
                struct sheaf_reader_identity identity =
                        identity_of(sample->identity);
                int rc;

                if (!path)
                        return -ENOMEM;
                rc = sheaf_reader_probe(
                        SHEAF_READER_FD_ROOT, path, sample->follow, &identity);
                if (rc && rc != -ENOENT && rc != -ESTALE)
                        return rc;
                others += rc != 0;
        }
        return 2 * others > request->n_sample ? -ESTALE : 0;
}

static void *run_probe(void *request_p)
{
        SheafReader__Request *request = request_p;
        SheafReader__Probed probed = SHEAF_READER__PROBED__INIT;
        SheafReader__Reply reply = SHEAF_READER__REPLY__INIT;

        probed.id = request->probe->id;
        probed.rc = probe(request->probe);
        sheaf_reader__request__free_unpacked(request, NULL);
        reply.body_case = SHEAF_READER__REPLY__BODY_PROBED;
        reply.probed = &probed;
        send_reply(&reply, -1);
        return NULL;
}

/* ---- loop ---- */

static void take_request(SheafReader__Request *request)
{
        pthread_t thread;

        switch (request->body_case) {
        case SHEAF_READER__REQUEST__BODY_READS:
                take_reads(request->reads);
                break;
        case SHEAF_READER__REQUEST__BODY_LIST:
                take_list(request->list);
                break;
        case SHEAF_READER__REQUEST__BODY_CANCEL:
                if (request->cancel->id == lister.id)
                        atomic_store(&lister.cancelled, true);
                break;
        case SHEAF_READER__REQUEST__BODY_PROBE:
                if (pthread_create(&thread, NULL, run_probe, request))
                        _exit(1);
                pthread_detach(thread);
                return; /* freed there */
        default:
                break;
        }
        sheaf_reader__request__free_unpacked(request, NULL);
}

/* Until there is a message. */
static void wait_for_message(int64_t *tick_ns)
{
        struct pollfd poll_fd = { .fd = SHEAF_READER_FD_SOCK,
                .events = POLLIN };

        for (;;) {
                bool working = atomic_load(&jobs.outstanding);
                int rc = poll(&poll_fd, 1, working ? TICK_MS : -1);

                if (working &&
                        now_ns() - *tick_ns >= TICK_MS * SHEAF_NS_PER_MS) {
                        tick();
                        *tick_ns = now_ns();
                }
                if (rc > 0)
                        return;
        }
}

_Noreturn void sheaf_reader_serve(int threads)
{
        static uint8_t data[SHEAF_WIRE_BYTES_MAX];
        int64_t tick_ns = 0;

        buffers = mmap(NULL, SHEAF_ORIGIN_SLOTS * SHEAF_CHUNK_BYTES_MAX,
                PROT_READ | PROT_WRITE, MAP_SHARED, SHEAF_READER_FD_BUFFERS, 0);
        if (buffers == MAP_FAILED)
                _exit(1);
        jobs.workers = threads;
        jobs.cores = (int)SHEAF_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1);
        for (int i = 0; i < threads; i++) {
                pthread_t thread;

                if (pthread_create(&thread, NULL, work, NULL))
                        _exit(1);
                pthread_detach(thread);
        }
        for (;;) {
                int fds[SHEAF_WIRE_FDS_MAX];
                size_t len, fd_count;
                SheafReader__Request *request;

                wait_for_message(&tick_ns);
                if (sheaf_wire_recv_record(SHEAF_READER_FD_SOCK, data,
                            sizeof(data), &len, fds, &fd_count) <= 0)
                        _exit(0);
                request = sheaf_reader__request__unpack(NULL, len, data);
                if (!request || !sheaf_reader_request_good(request))
                        abort();
                take_request(request);
        }
}
