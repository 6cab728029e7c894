/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to an origin: queue, deadlines, loss of readers, idle end.
 *
 *  1 no callback runs inside the call that submits a request; what is known
 *    at once is told in the next turn of the loop
 *  2 every request ends by its deadline, also one that waits for a slot or
 *    for a reader
 *  3 a reader that owes a reply for longer than the deadline is killed; what
 *    else it had in work goes to its successors, a bounded number of times:
 *    some files kill whoever reads them
 *  4 a reader that somebody kills says nothing about the next one; three that
 *    end by themselves before their first reply do
 *  5 callbacks may free the origin: after each one `freed` is looked at, and
 *    the memory itself goes only when the loop has closed the handles
 *
 * Threads: loop thread only. */
#include "daemon/origin/origin_impl.h"

#include <fcntl.h>
#include <inttypes.h>

#define DEFAULT_IDLE_NS    (60 * SHEAF_NS_PER_SEC)
#define DEFAULT_THREADS    8
#define TICK_MIN_MS        1
#define TICK_MAX_MS        500
#define HOLD_OFF_FIRST_NS  (50 * SHEAF_NS_PER_MS)
#define HOLD_OFF_DOUBLINGS 6
#define BARREN_MAX         3  /* readers, then waiting requests are failed */
#define LOSSES_MAX         64 /* readers that one request may lose */
#define PROBE_SAMPLES      16

static void pump(struct sheaf_origin *origin);

static void on_kick(uv_idle_t *idle)
{
        uv_idle_stop(idle);
        pump(idle->data);
}

void sheaf_origin_kick(struct sheaf_origin *origin)
{
        if (!origin->freed)
                uv_idle_start(&origin->kick, on_kick);
}

/* ---- ends of requests ---- */

void sheaf_origin_complete(struct sheaf_read_priv *priv, int rc)
{
        struct sheaf_origin *origin = priv->origin;

        origin->last_used_ns = sheaf_now_ns();
        origin->stats.reads++;
        if (rc >= 0) {
                priv->state = SHEAF_READ_HELD;
                origin->stats.bytes +=
                        sheaf_listing_chunk_len(priv->read->listing,
                                priv->read->entry, priv->read->index);
        } else {
                priv->state = SHEAF_READ_ENDED;
                priv->read->bytes = NULL;
                origin->stats.errors++;
                origin->stats.stale += rc == -ESTALE;
                origin->stats.timeouts += rc == -ETIMEDOUT;
        }
        priv->read->done(priv->read, rc);
        sheaf_origin_kick(origin);
}

void sheaf_origin_fail_later(struct sheaf_read_priv *priv, int rc)
{
        priv->rc = rc;
        priv->state = SHEAF_READ_FAILED;
        TAILQ_INSERT_TAIL(&priv->origin->failed, priv, entry);
        sheaf_origin_kick(priv->origin);
}

static void forget_call(struct sheaf_call_priv *priv)
{
        struct sheaf_origin *origin = priv->origin;

        if (origin->list == priv)
                origin->list = NULL;
        if (origin->probe == priv)
                origin->probe = NULL;
}

void sheaf_origin_call_done(struct sheaf_call_priv *priv, int rc, int memfd,
        const struct sheaf_origin_summary *summary)
{
        static const struct sheaf_origin_summary nothing;
        struct sheaf_origin *origin = priv->origin;
        void *call = sheaf_steal(&priv->call);

        forget_call(priv);
        origin->last_used_ns = sheaf_now_ns();
        if (priv->is_list) {
                struct sheaf_origin_list *list = call;

                list->done(list, rc, memfd, summary ? summary : &nothing);
        } else {
                struct sheaf_origin_probe *probe = call;

                probe->done(probe, rc);
        }
        sheaf_origin_kick(origin);
}

static void tell_failed(struct sheaf_origin *origin)
{
        struct sheaf_read_priv *priv;

        while (!origin->freed && (priv = TAILQ_FIRST(&origin->failed))) {
                TAILQ_REMOVE(&origin->failed, priv, entry);
                sheaf_origin_complete(priv, priv->rc);
        }
        while (!origin->freed && origin->refused_count)
                sheaf_origin_call_done(origin->refused[--origin->refused_count],
                        -EBUSY, -1, NULL);
        if (!origin->freed && origin->list && origin->list->failed)
                sheaf_origin_call_done(
                        origin->list, origin->list->rc, -1, NULL);
        if (!origin->freed && origin->probe && origin->probe->failed)
                sheaf_origin_call_done(
                        origin->probe, origin->probe->rc, -1, NULL);
}

/* ---- readers ---- */

static void fail_waiting(struct sheaf_origin *origin, int rc)
{
        struct sheaf_read_priv *priv;

        while ((priv = TAILQ_FIRST(&origin->queue))) {
                TAILQ_REMOVE(&origin->queue, priv, entry);
                origin->queued--;
                sheaf_origin_fail_later(priv, rc);
        }
        if (origin->list && !origin->list->sent) {
                origin->list->failed = true;
                origin->list->rc = rc;
        }
        if (origin->probe && !origin->probe->sent) {
                origin->probe->failed = true;
                origin->probe->rc = rc;
        }
        sheaf_origin_kick(origin);
}

static void call_lost(struct sheaf_call_priv *priv, bool hung)
{
        if (!priv || !priv->sent || priv->failed)
                return;
        if (++priv->losses <= (hung ? 1 : LOSSES_MAX)) {
                priv->sent = false;
                priv->heard_ns = sheaf_now_ns();
                return;
        }
        priv->failed = true;
        priv->rc = hung ? -ETIMEDOUT : -EIO;
}

static void reads_lost(
        struct sheaf_origin *origin, struct sheaf_reader *reader, bool hung)
{
        for (size_t i = SHEAF_ORIGIN_SLOTS; i--;) {
                struct sheaf_reader_slot *slot = &reader->slots[i];
                struct sheaf_read_priv *priv = slot->read;

                if (slot->state != SHEAF_SLOT_BUSY)
                        continue;
                slot->state = SHEAF_SLOT_FREE;
                reader->busy--;
                if (!priv)
                        continue;
                priv->reader = NULL;
                if (++priv->losses > (hung ? 1 : LOSSES_MAX)) {
                        sheaf_origin_fail_later(priv, hung ? -ETIMEDOUT : -EIO);
                        continue;
                }
                priv->state = SHEAF_READ_QUEUED;
                TAILQ_INSERT_HEAD(&origin->queue, priv, entry);
                origin->queued++;
        }
}

void sheaf_origin_reader_lost(struct sheaf_reader *reader, bool hung)
{
        struct sheaf_origin *origin = reader->origin;

        if (!origin || origin->reader != reader)
                return;
        sheaf_log(SHEAF_LOG_WARN, "reader-lost", "pid=%d cause=%s in_flight=%u",
                reader->pid, hung ? "hung" : "ended", reader->busy);
        if (reader->replies || hung)
                origin->barren = 0;
        else
                reader->mute = true;
        origin->hold_off_ns =
                reader->mute ? sheaf_now_ns() + HOLD_OFF_FIRST_NS : 0;
        origin->reader = NULL;
        LIST_INSERT_HEAD(&origin->dying, reader, entry);
        origin->dying_count++;
        sheaf_reader_kill(reader);
        reads_lost(origin, reader, hung);
        call_lost(origin->list, hung);
        call_lost(origin->probe, hung);
        if (reader->exited)
                sheaf_origin_reader_exited(reader);
        sheaf_origin_kick(origin);
}

/* One that ended by itself and never answered would only do so again. */
static void count_barren(
        struct sheaf_origin *origin, const struct sheaf_reader *reader)
{
        if (!reader->mute || reader->shot)
                return;
        if (origin->barren < HOLD_OFF_DOUBLINGS)
                origin->barren++;
        origin->hold_off_ns =
                sheaf_now_ns() + (HOLD_OFF_FIRST_NS << origin->barren);
        if (origin->barren >= BARREN_MAX)
                fail_waiting(origin, -EIO);
}

void sheaf_origin_reader_exited(struct sheaf_reader *reader)
{
        struct sheaf_origin *origin = reader->origin;

        if (origin && origin->reader == reader) {
                /* Its last replies may still lie in the socket: they are
                 * taken before it is given up. */
                sheaf_origin_on_socket(reader);
                if (!reader->killed)
                        sheaf_origin_reader_lost(reader, false);
                return;
        }
        if (origin) {
                LIST_REMOVE(reader, entry);
                origin->dying_count--;
                reader->origin = NULL;
                count_barren(origin, reader);
                sheaf_origin_kick(origin);
        }
        sheaf_reader_settle(reader);
}

void sheaf_origin_on_socket(struct sheaf_reader *reader)
{
        struct sheaf_origin *origin = reader->origin;
        int rc = sheaf_slots_receive(reader);

        if (rc && !reader->killed) {
                if (rc != -EPIPE && rc != -ECONNRESET)
                        sheaf_log_rc(rc, SHEAF_LOG_ERROR, "reader-protocol",
                                "pid=%d", reader->pid);
                sheaf_origin_reader_lost(reader, false);
        }
        if (origin && !origin->freed)
                sheaf_origin_kick(origin);
}

static int ensure_reader(struct sheaf_origin *origin)
{
        int rc;

        if (origin->reader)
                return 0;
        if (origin->dying_count >= SHEAF_ORIGIN_DYING_MAX ||
                sheaf_now_ns() < origin->hold_off_ns)
                return -EAGAIN;
        rc = sheaf_reader_spawn(origin);
        if (rc)
                sheaf_log_rc(rc, SHEAF_LOG_ERROR, "reader-start", "program=%s",
                        origin->reader_path);
        return rc == -EAGAIN ? -ENOMEM : rc;
}

/* ---- sending ---- */

static int send_list(struct sheaf_origin *origin)
{
        struct sheaf_origin_list *list = origin->list->call;
        SheafReader__Request request = SHEAF_READER__REQUEST__INIT;
        SheafReader__List body = SHEAF_READER__LIST__INIT;

        body.id = origin->list->id;
        body.follow = list->follow;
        body.serial = list->serial;
        body.uuid.data = list->uuid;
        body.uuid.len = sizeof(list->uuid);
        request.body_case = SHEAF_READER__REQUEST__BODY_LIST;
        request.list = &body;
        return sheaf_request_send(origin->reader, &request);
}

struct samples {
        size_t count;
        SheafReader__Sample sample[PROBE_SAMPLES], *sample_p[PROBE_SAMPLES];
        SheafReader__Identity identity[PROBE_SAMPLES];
        char path[PROBE_SAMPLES][2 * SHEAF_KIB];
};

/* Files spread evenly over the listing; over-long paths are left out. */
static void choose_samples(
        const struct sheaf_listing *listing, struct samples *out)
{
        uint32_t step = listing->file_count / PROBE_SAMPLES + 1;

        out->count = 0;
        for (uint64_t at = 0; at < listing->file_count; at += step) {
                uint32_t index = listing->files[at];
                const struct sheaf_listing_entry *e = &listing->entries[index];
                SheafReader__Identity *identity = &out->identity[out->count];
                SheafReader__Sample *sample = &out->sample[out->count];
                size_t len = sheaf_listing_path(listing, index,
                        out->path[out->count], sizeof(out->path[0]));

                if (len >= sizeof(out->path[0]))
                        continue;
                sheaf_reader__identity__init(identity);
                identity->ino = e->origin_ino;
                identity->size_bytes = e->size_bytes;
                identity->mtime_sec = e->mtime_sec;
                identity->mtime_nsec = e->mtime_nsec;
                sheaf_reader__sample__init(sample);
                sample->path.data = (uint8_t *)out->path[out->count];
                sample->path.len = len;
                sample->follow = e->flags & SHEAF_LISTING_FOLLOWED;
                sample->identity = identity;
                out->sample_p[out->count++] = sample;
        }
}

static int send_probe(struct sheaf_origin *origin)
{
        struct sheaf_origin_probe *probe = origin->probe->call;
        SheafReader__Request request = SHEAF_READER__REQUEST__INIT;
        SheafReader__Probe body = SHEAF_READER__PROBE__INIT;
        struct samples samples;

        choose_samples(probe->listing, &samples);
        body.id = origin->probe->id;
        body.root_ino = probe->listing->entries[0].origin_ino;
        body.n_sample = samples.count;
        body.sample = samples.sample_p;
        request.body_case = SHEAF_READER__REQUEST__BODY_PROBE;
        request.probe = &body;
        return sheaf_request_send(origin->reader, &request);
}

static int send_call(
        struct sheaf_call_priv *priv, int (*send)(struct sheaf_origin *origin))
{
        int rc;

        if (!priv || priv->sent || priv->failed)
                return 0;
        rc = send(priv->origin);
        if (rc)
                return rc;
        priv->sent = true;
        priv->heard_ns = sheaf_now_ns();
        return 0;
}

static bool wants_reader(const struct sheaf_origin *origin)
{
        return !TAILQ_EMPTY(&origin->queue) ||
               (origin->list && !origin->list->sent) ||
               (origin->probe && !origin->probe->sent);
}

/* ---- time ---- */

static void expire_queue(struct sheaf_origin *origin, int64_t now_ns)
{
        struct sheaf_read_priv *priv, *next;

        for (priv = TAILQ_FIRST(&origin->queue); priv; priv = next) {
                next = TAILQ_NEXT(priv, entry);
                if (now_ns - priv->submitted_ns < origin->config.deadline_ns)
                        continue;
                TAILQ_REMOVE(&origin->queue, priv, entry);
                origin->queued--;
                sheaf_origin_fail_later(priv, -ETIMEDOUT);
        }
}

/* True when the reader owes a reply for too long. */
static bool expire_slots(struct sheaf_origin *origin, int64_t now_ns)
{
        int64_t deadline_ns = origin->config.deadline_ns;
        bool hung = false;

        for (size_t i = 0; i < SHEAF_ORIGIN_SLOTS; i++) {
                struct sheaf_reader_slot *slot = &origin->reader->slots[i];

                if (slot->state != SHEAF_SLOT_BUSY)
                        continue;
                hung |= now_ns - slot->sent_ns >= deadline_ns;
                if (slot->read &&
                        now_ns - slot->read->submitted_ns >= deadline_ns)
                        sheaf_origin_fail_later(
                                sheaf_steal(&slot->read), -ETIMEDOUT);
        }
        return hung;
}

static bool expire_call(struct sheaf_call_priv *priv, int64_t now_ns)
{
        if (!priv || priv->failed ||
                now_ns - priv->heard_ns < priv->deadline_ns)
                return false;
        priv->failed = true;
        priv->rc = -ETIMEDOUT;
        return priv->sent;
}

static void expire_dying(struct sheaf_origin *origin, int64_t now_ns)
{
        struct sheaf_reader *reader;

        LIST_FOREACH (reader, &origin->dying, entry) {
                if (reader->abandoned ||
                        now_ns - reader->killed_ns < SHEAF_ORIGIN_ABANDON_NS)
                        continue;
                reader->abandoned = true;
                origin->stats.abandoned++;
                sheaf_log(SHEAF_LOG_ERROR, "reader-abandoned",
                        "pid=%d cause=\"it survives SIGKILL: the origin's "
                        "file server does not answer\"",
                        reader->pid);
        }
}

static bool active(const struct sheaf_origin *origin)
{
        return wants_reader(origin) || origin->list || origin->probe ||
               !LIST_EMPTY(&origin->dying) ||
               (origin->reader && origin->reader->busy);
}

static void end_idle(struct sheaf_origin *origin, int64_t now_ns)
{
        struct sheaf_reader *reader = origin->reader;

        if (!reader || active(origin) || reader->held ||
                now_ns - origin->last_used_ns < origin->config.idle_ns)
                return;
        origin->reader = NULL;
        LIST_INSERT_HEAD(&origin->dying, reader, entry);
        origin->dying_count++;
        sheaf_reader_kill(reader);
}

static void on_timer(uv_timer_t *timer)
{
        struct sheaf_origin *origin = timer->data;
        int64_t now_ns = sheaf_now_ns();
        bool hung = false;

        expire_queue(origin, now_ns);
        if (origin->reader)
                hung = expire_slots(origin, now_ns);
        hung |= expire_call(origin->list, now_ns);
        hung |= expire_call(origin->probe, now_ns);
        if (hung && origin->reader)
                sheaf_origin_reader_lost(origin->reader, true);
        expire_dying(origin, now_ns);
        end_idle(origin, now_ns);
        pump(origin);
}

static uint64_t tick_ms(const struct sheaf_origin *origin)
{
        int64_t deadline_ns = origin->config.deadline_ns;
        int64_t ms;

        if (origin->list)
                deadline_ns = SHEAF_MIN(deadline_ns, origin->list->deadline_ns);
        ms = deadline_ns / 16 / SHEAF_NS_PER_MS;
        return (uint64_t)SHEAF_MAX(SHEAF_MIN(ms, TICK_MAX_MS), TICK_MIN_MS);
}

static void set_timer(struct sheaf_origin *origin)
{
        if (active(origin)) {
                if (!uv_is_active((uv_handle_t *)&origin->timer) ||
                        !uv_timer_get_repeat(&origin->timer))
                        uv_timer_start(&origin->timer, on_timer,
                                tick_ms(origin), tick_ms(origin));
        } else if (origin->reader) {
                int64_t idle_ms = origin->config.idle_ns / SHEAF_NS_PER_MS;

                uv_timer_start(
                        &origin->timer, on_timer, (uint64_t)idle_ms + 1, 0);
        } else {
                uv_timer_stop(&origin->timer);
        }
}

static void pump(struct sheaf_origin *origin)
{
        int rc = 0;

        tell_failed(origin);
        if (origin->freed)
                return;
        if (wants_reader(origin))
                rc = ensure_reader(origin);
        if (rc && rc != -EAGAIN)
                fail_waiting(origin, rc);
        if (!rc && origin->reader) {
                rc = send_call(origin->list, send_list);
                if (!rc)
                        rc = send_call(origin->probe, send_probe);
                if (!rc)
                        rc = sheaf_slots_send(origin);
                if (rc && rc != -EAGAIN && rc != -ENOMEM)
                        sheaf_origin_reader_lost(origin->reader, false);
                else
                        sheaf_reader_want_write(origin->reader, rc == -EAGAIN);
        }
        set_timer(origin);
}

/* ---- public ---- */

int sheaf_origin_new(const struct sheaf_origin_config *config,
        struct sheaf_origin **ret_origin)
{
        struct sheaf_origin *origin;
        size_t groups_bytes = config->group_count * sizeof(gid_t);
        int rc;

        if (!config->reader_path ||
                (config->root_fd < 0 && !config->root_path) ||
                config->deadline_ns <= 0 || config->threads < 0 ||
                config->threads > 64)
                return -EINVAL;
        origin = sheaf_new(struct sheaf_origin, 1);
        if (!origin)
                return -ENOMEM;
        origin->config = *config;
        origin->reader_path = strdup(config->reader_path);
        origin->groups = malloc(groups_bytes + 1);
        if (config->root_fd >= 0)
                origin->config.root_fd =
                        fcntl(config->root_fd, F_DUPFD_CLOEXEC, 3);
        else
                origin->config.root_fd =
                        open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (config->root_fd < 0)
                origin->root_path = strdup(config->root_path);
        if (!origin->reader_path || !origin->groups ||
                origin->config.root_fd < 0 ||
                (config->root_fd < 0 && !origin->root_path)) {
                rc = origin->config.root_fd < 0 ? -errno : -ENOMEM;
                sheaf_close_p(&origin->config.root_fd);
                free(origin->reader_path);
                free(origin->root_path);
                free(origin->groups);
                free(origin);
                return rc;
        }
        if (groups_bytes)
                memcpy(origin->groups, config->groups, groups_bytes);
        if (!origin->config.threads)
                origin->config.threads = DEFAULT_THREADS;
        if (!origin->config.idle_ns)
                origin->config.idle_ns = DEFAULT_IDLE_NS;
        TAILQ_INIT(&origin->queue);
        TAILQ_INIT(&origin->failed);
        LIST_INIT(&origin->dying);
        uv_timer_init(config->loop, &origin->timer);
        uv_idle_init(config->loop, &origin->kick);
        origin->timer.data = origin->kick.data = origin;
        origin->open_handles = 2;
        *ret_origin = origin;
        return 0;
}

static void on_close(uv_handle_t *handle)
{
        struct sheaf_origin *origin = handle->data;

        if (--origin->open_handles)
                return;
        free(origin->reader_path);
        free(origin->root_path);
        free(origin->groups);
        free(origin);
}

static void cancel_all(struct sheaf_origin *origin)
{
        struct sheaf_read_priv *priv;
        struct sheaf_reader *reader = origin->reader;

        for (size_t i = 0; reader && i < SHEAF_ORIGIN_SLOTS; i++) {
                if (reader->slots[i].state != SHEAF_SLOT_BUSY)
                        continue;
                reader->slots[i].state = SHEAF_SLOT_FREE;
                reader->busy--;
                priv = sheaf_steal(&reader->slots[i].read);
                if (priv)
                        TAILQ_INSERT_TAIL(&origin->failed, priv, entry);
        }
        TAILQ_CONCAT(&origin->failed, &origin->queue, entry);
        while ((priv = TAILQ_FIRST(&origin->failed))) {
                TAILQ_REMOVE(&origin->failed, priv, entry);
                sheaf_origin_complete(priv, -ECANCELED);
        }
        while (origin->refused_count)
                sheaf_origin_call_done(origin->refused[--origin->refused_count],
                        -ECANCELED, -1, NULL);
        if (origin->list)
                sheaf_origin_call_done(origin->list, -ECANCELED, -1, NULL);
        if (origin->probe)
                sheaf_origin_call_done(origin->probe, -ECANCELED, -1, NULL);
}

void sheaf_origin_free(struct sheaf_origin *origin)
{
        struct sheaf_reader *reader;

        if (!origin || origin->freed)
                return;
        origin->freed = true;
        reader = origin->reader;
        if (reader)
                sheaf_reader_kill(reader);
        cancel_all(origin);
        origin->reader = NULL;
        if (reader) {
                reader->origin = NULL;
                sheaf_reader_settle(reader);
        }
        while ((reader = LIST_FIRST(&origin->dying))) {
                LIST_REMOVE(reader, entry);
                reader->origin = NULL;
                sheaf_reader_settle(reader);
        }
        sheaf_close_p(&origin->config.root_fd);
        uv_close((uv_handle_t *)&origin->timer, on_close);
        uv_close((uv_handle_t *)&origin->kick, on_close);
}

void sheaf_origin_read(
        struct sheaf_origin *origin, struct sheaf_origin_read *read)
{
        struct sheaf_read_priv *priv = sheaf_read_priv(read);

        *priv = (struct sheaf_read_priv){
                .origin = origin,
                .read = read,
                .submitted_ns = sheaf_now_ns(),
                .state = SHEAF_READ_QUEUED,
        };
        read->bytes = NULL;
        if (origin->queued >= SHEAF_ORIGIN_QUEUE_MAX) {
                sheaf_origin_fail_later(priv, -EAGAIN);
                return;
        }
        TAILQ_INSERT_TAIL(&origin->queue, priv, entry);
        origin->queued++;
        sheaf_origin_kick(origin);
}

void sheaf_origin_read_end(struct sheaf_origin_read *read)
{
        struct sheaf_read_priv *priv = sheaf_read_priv(read);
        struct sheaf_reader *reader = priv->reader;

        if (priv->state != SHEAF_READ_HELD)
                return;
        priv->state = SHEAF_READ_ENDED;
        read->bytes = NULL;
        reader->slots[priv->slot].state = SHEAF_SLOT_FREE;
        reader->held--;
        if (reader->origin && !TAILQ_EMPTY(&reader->origin->queue))
                sheaf_origin_kick(reader->origin);
        sheaf_reader_settle(reader);
}

static void submit_call(struct sheaf_origin *origin, void *call,
        struct sheaf_call_priv *priv, bool is_list, int64_t deadline_ns)
{
        struct sheaf_call_priv **place =
                is_list ? &origin->list : &origin->probe;

        *priv = (struct sheaf_call_priv){
                .origin = origin,
                .call = call,
                .id = ++origin->next_id,
                .heard_ns = sheaf_now_ns(),
                .deadline_ns = deadline_ns > 0 ? deadline_ns
                                               : origin->config.deadline_ns,
                .is_list = is_list,
        };
        if (!*place)
                *place = priv;
        else if (origin->refused_count < SHEAF_ARRAY_LEN(origin->refused))
                origin->refused[origin->refused_count++] = priv;
        else
                abort(); /* a caller that never lets the loop turn */
        /* The period of the clock may have to be shorter now. */
        uv_timer_stop(&origin->timer);
        sheaf_origin_kick(origin);
}

void sheaf_origin_list(
        struct sheaf_origin *origin, struct sheaf_origin_list *list)
{
        submit_call(origin, list, (void *)list->origin_private, true,
                list->deadline_ns);
}

void sheaf_origin_list_cancel(struct sheaf_origin_list *list)
{
        struct sheaf_call_priv *priv = (void *)list->origin_private;
        SheafReader__Request request = SHEAF_READER__REQUEST__INIT;
        SheafReader__Cancel cancel = SHEAF_READER__CANCEL__INIT;
        struct sheaf_origin *origin = priv->origin;

        if (!priv->call)
                return;
        for (size_t i = 0; i < origin->refused_count; i++) {
                if (origin->refused[i] == priv) {
                        origin->refused[i] =
                                origin->refused[--origin->refused_count];
                        break;
                }
        }
        if (priv->sent && origin->reader) {
                cancel.id = priv->id;
                request.body_case = SHEAF_READER__REQUEST__BODY_CANCEL;
                request.cancel = &cancel;
                /* A full socket: the walk goes on, its result is ignored. */
                (void)!sheaf_request_send(origin->reader, &request);
        }
        sheaf_origin_call_done(priv, -ECANCELED, -1, NULL);
}

void sheaf_origin_probe(
        struct sheaf_origin *origin, struct sheaf_origin_probe *probe)
{
        submit_call(origin, probe, (void *)probe->origin_private, false, 0);
}

static int64_t silent_ns(const struct sheaf_origin *origin)
{
        const struct sheaf_call_priv *calls[] = { origin->list, origin->probe };
        const struct sheaf_read_priv *first = TAILQ_FIRST(&origin->queue);
        int64_t now_ns = sheaf_now_ns(), oldest_ns = now_ns;

        if (first)
                oldest_ns = first->submitted_ns;
        for (size_t i = 0; i < SHEAF_ARRAY_LEN(calls); i++)
                if (calls[i])
                        oldest_ns = SHEAF_MIN(oldest_ns, calls[i]->heard_ns);
        for (size_t i = 0; origin->reader && i < SHEAF_ORIGIN_SLOTS; i++) {
                const struct sheaf_reader_slot *slot =
                        &origin->reader->slots[i];

                if (slot->state == SHEAF_SLOT_BUSY)
                        oldest_ns = SHEAF_MIN(oldest_ns, slot->sent_ns);
        }
        return now_ns - oldest_ns;
}

void sheaf_origin_stats(
        const struct sheaf_origin *origin, struct sheaf_origin_stats *ret_stats)
{
        const struct sheaf_reader *reader;

        *ret_stats = origin->stats;
        ret_stats->pid = origin->reader ? origin->reader->pid : 0;
        ret_stats->in_flight = origin->reader ? origin->reader->busy : 0;
        ret_stats->queued = origin->queued;
        ret_stats->held_off =
                origin->barren && !(origin->reader && origin->reader->replies);
        ret_stats->waits = ret_stats->in_flight + ret_stats->queued >
                           (uint64_t)origin->config.threads;
        ret_stats->silent_ns = silent_ns(origin);
        LIST_FOREACH (reader, &origin->dying, entry)
                ret_stats->stuck += reader->abandoned;
}
