/* SPDX-License-Identifier: Apache-2.0 */
/* tools/cli/progress: what is said about long work. */
#include "tools/cli/progress.h"

#include <criterion/criterion.h>

Test(progress, spans)
{
        char buf[CLI_SPAN_TEXT_MAX];

        cr_assert_str_eq(cli_span_text(0.2, buf), "0 s");
        cr_assert_str_eq(cli_span_text(12, buf), "12 s");
        cr_assert_str_eq(cli_span_text(200, buf), "3 min 20 s");
        cr_assert_str_eq(cli_span_text(7500, buf), "2 h 5 min");
        cr_assert_str_eq(cli_span_text(1e300, buf), "unknown");
}

Test(progress, text)
{
        Sheaf__Progress state = SHEAF__PROGRESS__INIT;
        char buf[CLI_PROGRESS_TEXT_MAX];

        state.what = (char *)"fetching";
        state.done = 1000;
        cr_assert_str_eq(cli_progress_text(&state, 0, buf), "fetching 1,000");
        state.total = 2000;
        cr_assert_str_eq(cli_progress_text(&state, 100, buf),
                "fetching 1,000 of 2,000, 100/s, 10 s left");
        state.done_bytes = SHEAF_MIB;
        state.total_bytes = 3 * SHEAF_MIB;
        state.errors = 2;
        cr_assert_str_eq(cli_progress_text(&state, SHEAF_MIB, buf),
                "fetching 1,000 of 2,000, 1.0 MiB, 1.0 MiB/s, 2 s left, 2 "
                "errors");
}

Test(progress, long_words_fit)
{
        Sheaf__Progress state = SHEAF__PROGRESS__INIT;
        char buf[CLI_PROGRESS_TEXT_MAX];
        char word[600];

        memset(word, 'w', sizeof(word) - 1);
        word[sizeof(word) - 1] = '\0';
        state.what = word;
        state.done = state.total = state.done_bytes = state.total_bytes =
                state.errors = UINT64_MAX;
        cli_progress_text(&state, 1e19, buf);
        cr_assert_lt(strlen(buf), sizeof(buf));
}
