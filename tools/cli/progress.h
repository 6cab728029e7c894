/* SPDX-License-Identifier: Apache-2.0 */
/* Progress of long work on stderr: a bar with rate and time left on a
 * terminal, else a plain line every few seconds. One thread. */
#ifndef SHEAF_TOOLS_CLI_PROGRESS_H
#define SHEAF_TOOLS_CLI_PROGRESS_H

#include "proto/control.pb-c.h"
#include "tools/cli/cli.h"

struct cli_progress {
        bool tty;
        bool quiet;
        bool bar_shown;
        int64_t begun_ns;
        int64_t shown_ns; /* of the last output */
        int64_t rate_ns;  /* of the sample that the rate is taken from */
        uint64_t rate_amount;
        double rate; /* smoothed, per second, of bytes or units */
};

void cli_progress_begin(struct cli_progress *progress, const struct cli *cli);
void cli_progress_show(
        struct cli_progress *progress, const Sheaf__Progress *state);
/* Takes the bar off the terminal, so that other output can follow. */
void cli_progress_clear(struct cli_progress *progress);

/* "12 s", "3 min 20 s", "2 h 5 min" into @buf. */
#define CLI_SPAN_TEXT_MAX 40
const char *cli_span_text(double seconds, char buf[CLI_SPAN_TEXT_MAX]);

/* The text of one state, without bar: for tests and plain lines. */
#define CLI_PROGRESS_TEXT_MAX 256
const char *cli_progress_text(const Sheaf__Progress *state, double rate,
        char buf[CLI_PROGRESS_TEXT_MAX]);

#endif
