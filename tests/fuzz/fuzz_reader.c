/* SPDX-License-Identifier: Apache-2.0 */
/* Any records, with descriptors, as answers of a reader to eight reads, a
 * listing and a probe that are under way.
 *
 *  1 the reader is lost, or each request ends once, with 0 or an errno
 *  2 bytes lie in the slot that the read was given
 *  3 slots are busy, held or free as the counters say
 *  4 descriptors that nobody takes are closed */
#include "daemon/origin/origin_impl.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/message.h"
#include "tests/proto/make_listing.h"

#include <sys/socket.h>

#define READS       8
#define RECORDS_MAX 16

static uv_loop_t loop;
static struct block block;

static struct {
        struct sheaf_origin *origin;
        struct sheaf_reader *reader;
        struct sheaf_origin_read reads[READS];
        int ended[READS], memfds;
        struct sheaf_origin_list list;
        struct sheaf_origin_probe probe;
        int list_ended, probe_ended;
        int peer;
} rig;

static void on_read(struct sheaf_origin_read *read, int rc)
{
        size_t i = (size_t)(read - rig.reads);
        const struct sheaf_read_priv *priv = sheaf_read_priv(read);

        fuzz_must(i < READS && ++rig.ended[i] == 1);
        fuzz_must(rc >= -4095 && rc <= SHEAF_ORIGIN_CTIME_MOVED);
        if (rc >= 0)
                fuzz_must((const char *)read->bytes ==
                          rig.reader->buffers +
                                  priv->slot * SHEAF_CHUNK_BYTES_MAX);
        else
                fuzz_must(!read->bytes);
}

static void on_list(struct sheaf_origin_list *list, int rc, int memfd,
        const struct sheaf_origin_summary *summary)
{
        fuzz_must(list == &rig.list && ++rig.list_ended == 1);
        fuzz_must(rc <= 0 && (rc == 0) == (memfd >= 0));
        fuzz_must(strnlen(summary->first_escaping, 256) < 256 &&
                  strnlen(summary->first_unreadable, 256) < 256);
        sheaf_close_p(&memfd);
}

static void on_progress(struct sheaf_origin_list *list, uint64_t entries)
{
        (void)entries;
        fuzz_must(list == &rig.list && !rig.list_ended);
}

static void on_probe(struct sheaf_origin_probe *probe, int rc)
{
        fuzz_must(probe == &rig.probe && ++rig.probe_ended == 1 && rc <= 0);
}

static void setup(void)
{
        if (block.data)
                return;
        sheaf_log_set_level((enum sheaf_log_level) - 1); /* none */
        make_golden(&block);
        fuzz_must(!uv_loop_init(&loop));
}

static void begin(void)
{
        static char buffers[1];
        struct sheaf_origin_config config = { .loop = &loop,
                .reader_path = "/nowhere",
                .root_fd = fuzz_dir(),
                .deadline_ns = 3600 * SHEAF_NS_PER_SEC };
        int pair[2];

        memset(&rig, 0, sizeof(rig));
        fuzz_must(
                !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair));
        fuzz_must(!sheaf_origin_new(&config, &rig.origin));
        rig.reader = sheaf_new(struct sheaf_reader, 1);
        fuzz_must(rig.reader);
        rig.reader->sock = pair[0];
        rig.peer = pair[1];
        rig.reader->origin = rig.origin;
        rig.reader->buffers = buffers;
        rig.origin->reader = rig.reader;
        for (size_t i = 0; i < READS; i++) {
                rig.reads[i].listing = &block.view;
                rig.reads[i].entry = 1;
                rig.reads[i].index = i % 2;
                rig.reads[i].done = on_read;
                sheaf_origin_read(rig.origin, &rig.reads[i]);
        }
        fuzz_must(!sheaf_slots_send(rig.origin));
        rig.list.done = on_list;
        rig.list.progress = on_progress;
        sheaf_origin_list(rig.origin, &rig.list);
        rig.probe.listing = &block.view;
        rig.probe.done = on_probe;
        sheaf_origin_probe(rig.origin, &rig.probe);
        rig.origin->list->sent = rig.origin->probe->sent = true;
}

static void check(void)
{
        unsigned int busy = 0, held = 0;

        for (size_t i = 0; i < SHEAF_ORIGIN_SLOTS; i++) {
                busy += rig.reader->slots[i].state == SHEAF_SLOT_BUSY;
                held += rig.reader->slots[i].state == SHEAF_SLOT_HELD;
        }
        fuzz_must(busy == rig.reader->busy && held == rig.reader->held);
}

/* Ids begin at 1 for the reads; a listing has 9, a probe 10. */
static bool feed(struct fuzz_input *in)
{
        uint8_t record[4096];
        uint8_t how = fuzz_u8(in);
        size_t len = SHEAF_MIN((size_t)fuzz_u16(in) % sizeof(record), in->left);
        int fds[4] = { rig.peer, rig.peer, rig.peer, rig.peer };

        fuzz_take(in, record, len);
        fuzz_must(!sheaf_wire_send_record(rig.peer, record, len, fds, how % 4));
        if (how & 4) /* the caller may give bytes back at any time */
                sheaf_origin_read_end(&rig.reads[how / 8 % READS]);
        return sheaf_slots_receive(rig.reader) == 0;
}

static void end(void)
{
        struct sheaf_reader *reader = rig.reader;

        for (size_t i = 0; i < READS; i++)
                if (rig.reads[i].bytes)
                        sheaf_origin_read_end(&rig.reads[i]);
        fuzz_must(!reader->held);
        reader->killed = true; /* there is no process */
        sheaf_origin_free(rig.origin);
        uv_run(&loop, UV_RUN_DEFAULT);
        for (size_t i = 0; i < READS; i++)
                fuzz_must(rig.ended[i] == 1);
        fuzz_must(rig.list_ended == 1 && rig.probe_ended == 1);
        close(reader->sock);
        close(rig.peer);
        free(reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct fuzz_input in = { data, size };
        SheafReader__Reply *reply;
        int before;

        setup();
        reply = sheaf_reader__reply__unpack(NULL, size, data);
        if (reply)
                fuzz_message(&reply->base);
        before = dup(fuzz_dir());
        close(before);
        begin();
        for (int i = 0; i < RECORDS_MAX && in.left && feed(&in); i++)
                check();
        end();
        fuzz_must(dup(fuzz_dir()) == before);
        close(before);
        return 0;
}
