/* SPDX-License-Identifier: Apache-2.0 */
/* Progress bars and lines.
 *
 *  1 the rate is smoothed over some seconds; time left is shown only when the
 *    total is known
 *  2 a terminal is redrawn at most ten times a second */
#include "tools/cli/progress.h"
#include "proto/size.h"
#include "tools/cli/out.h"

#include <stdio.h>
#include <time.h>

#define REDRAW_NS (SHEAF_NS_PER_SEC / 10)
#define PLAIN_NS  (5 * SHEAF_NS_PER_SEC)
#define SAMPLE_NS (SHEAF_NS_PER_SEC / 2)
#define SMOOTH    0.3
#define BAR_CELLS 24

static int64_t now_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return ts.tv_sec * SHEAF_NS_PER_SEC + ts.tv_nsec;
}

void cli_progress_begin(struct cli_progress *progress, const struct cli *cli)
{
        *progress = (struct cli_progress){ .tty = isatty(STDERR_FILENO) == 1,
                .quiet = cli->quiet };
        progress->begun_ns = progress->shown_ns = progress->rate_ns = now_ns();
}

const char *cli_span_text(double seconds, char buf[CLI_SPAN_TEXT_MAX])
{
        /* Years of time left are noise from a rate near zero. */
        uint64_t s = seconds < 1e9 ? (uint64_t)(seconds + 0.5) : UINT64_MAX;

        if (s == UINT64_MAX)
                snprintf(buf, CLI_SPAN_TEXT_MAX, "unknown");
        else if (s < 100)
                snprintf(buf, CLI_SPAN_TEXT_MAX, "%u s", (unsigned int)s);
        else if (s < 6000)
                snprintf(buf, CLI_SPAN_TEXT_MAX, "%u min %u s",
                        (unsigned int)(s / 60), (unsigned int)(s % 60));
        else
                snprintf(buf, CLI_SPAN_TEXT_MAX, "%u h %u min",
                        (unsigned int)(s / 3600), (unsigned int)(s / 60 % 60));
        return buf;
}

static uint64_t amount(const Sheaf__Progress *state)
{
        return state->total_bytes || state->done_bytes ? state->done_bytes
                                                       : state->done;
}

static double fraction(const Sheaf__Progress *state)
{
        double part = 0;

        if (state->total_bytes)
                part = (double)state->done_bytes / (double)state->total_bytes;
        else if (state->total)
                part = (double)state->done / (double)state->total;
        return part < 1 ? part : 1;
}

static void sample_rate(struct cli_progress *progress,
        const Sheaf__Progress *state, int64_t now)
{
        uint64_t have = amount(state);
        double rate;

        if (now - progress->rate_ns < SAMPLE_NS)
                return;
        /* A new phase begins again at zero. */
        if (have < progress->rate_amount) {
                progress->rate = 0;
        } else {
                rate = (double)(have - progress->rate_amount) /
                       ((double)(now - progress->rate_ns) / 1e9);
                progress->rate =
                        progress->rate > 0
                                ? SMOOTH * rate + (1 - SMOOTH) * progress->rate
                                : rate;
        }
        progress->rate_ns = now;
        progress->rate_amount = have;
}

const char *cli_progress_text(const Sheaf__Progress *state, double rate,
        char buf[CLI_PROGRESS_TEXT_MAX])
{
        char done[CLI_COUNT_TEXT_MAX], total[CLI_COUNT_TEXT_MAX];
        char size[SHEAF_SIZE_TEXT_MAX], span[CLI_SPAN_TEXT_MAX];
        bool bytes = state->total_bytes || state->done_bytes;
        size_t n;

        n = (size_t)snprintf(buf, CLI_PROGRESS_TEXT_MAX, "%.20s %s",
                state->what, cli_count_text(state->done, done));
        if (state->total)
                n += (size_t)snprintf(buf + n, CLI_PROGRESS_TEXT_MAX - n,
                        " of %s", cli_count_text(state->total, total));
        if (bytes)
                n += (size_t)snprintf(buf + n, CLI_PROGRESS_TEXT_MAX - n,
                        ", %s", sheaf_size_text(state->done_bytes, size));
        if (rate > 0 && bytes)
                n += (size_t)snprintf(buf + n, CLI_PROGRESS_TEXT_MAX - n,
                        ", %s/s", sheaf_size_text((uint64_t)rate, size));
        else if (rate > 0)
                n += (size_t)snprintf(buf + n, CLI_PROGRESS_TEXT_MAX - n,
                        ", %s/s", cli_count_text((uint64_t)rate, done));
        if (rate > 0 && (state->total_bytes || state->total)) {
                uint64_t all =
                        state->total_bytes ? state->total_bytes : state->total;
                uint64_t left = all - SHEAF_MIN(all, amount(state));

                n += (size_t)snprintf(buf + n, CLI_PROGRESS_TEXT_MAX - n,
                        ", %s left", cli_span_text((double)left / rate, span));
        }
        if (state->errors)
                snprintf(buf + n, CLI_PROGRESS_TEXT_MAX - n, ", %s errors",
                        cli_count_text(state->errors, done));
        return buf;
}

static void draw(struct cli_progress *progress, const Sheaf__Progress *state)
{
        char text[CLI_PROGRESS_TEXT_MAX];
        char bar[BAR_CELLS + 1];
        bool known = state->total || state->total_bytes;
        int filled = (int)(fraction(state) * BAR_CELLS);

        cli_progress_text(state, progress->rate, text);
        memset(bar, '.', BAR_CELLS);
        memset(bar, '#', (size_t)filled);
        bar[BAR_CELLS] = '\0';
        if (known)
                fprintf(stderr, "\r\033[K[%s] %3d%% %s", bar,
                        (int)(fraction(state) * 100), text);
        else
                fprintf(stderr, "\r\033[K%s", text);
        fflush(stderr);
        progress->bar_shown = true;
}

void cli_progress_show(
        struct cli_progress *progress, const Sheaf__Progress *state)
{
        char text[CLI_PROGRESS_TEXT_MAX];
        int64_t now = now_ns();

        sample_rate(progress, state, now);
        if (progress->quiet)
                return;
        if (now - progress->shown_ns < (progress->tty ? REDRAW_NS : PLAIN_NS))
                return;
        progress->shown_ns = now;
        if (progress->tty)
                draw(progress, state);
        else
                fprintf(stderr, "%s\n",
                        cli_progress_text(state, progress->rate, text));
}

void cli_progress_clear(struct cli_progress *progress)
{
        if (!progress->bar_shown)
                return;
        fprintf(stderr, "\r\033[K");
        fflush(stderr);
        progress->bar_shown = false;
}
