/* SPDX-License-Identifier: Apache-2.0 */
/* What the mount's main program needs of libsheaf, over a directory: the
 * dataset named "x" is the directory FAKE_ORIGIN. FAKE_FAIL=connect or open
 * makes that step fail. */
#include "cachefs/source_client.h"
#include "tests/fakes/fake_dataset.h"

static struct fake_dataset fake;

const char *sheaf_last_error(void)
{
        return "as the test wants";
}

static bool fails(const char *step)
{
        const char *want = getenv("FAKE_FAIL");

        return want && !strcmp(want, step);
}

int sheaf_session_new(const struct sheaf_session_options *options,
        struct sheaf_session **ret_session)
{
        (void)options;
        *ret_session = NULL;
        return 0;
}

int sheaf_session_connect(struct sheaf_session *session)
{
        (void)session;
        return fails("connect") ? -ENOENT : 0;
}

const char *sheaf_session_socket(const struct sheaf_session *session)
{
        (void)session;
        return "/fake.sock";
}

void sheaf_session_free(struct sheaf_session *session)
{
        (void)session;
}

int sheaf_dataset_open(struct sheaf_session *session, const char *name,
        struct sheaf_dataset **ret_dataset)
{
        (void)session;
        (void)name;
        if (fails("open"))
                return -ENOENT;
        fake_dataset_new(getenv("FAKE_ORIGIN"), &fake);
        *ret_dataset = (struct sheaf_dataset *)&fake;
        return 0;
}

int sheaf_dataset_open_version(struct sheaf_session *session, const char *name,
        const uint8_t uuid[16], struct sheaf_dataset **ret_dataset)
{
        if (memcmp(uuid, "0123456789abcdef", 16))
                return -ENOENT;
        return sheaf_dataset_open(session, name, ret_dataset);
}

void sheaf_dataset_close(struct sheaf_dataset *dataset)
{
        fake_dataset_free((struct fake_dataset *)dataset);
}

void sheaf_source_client(struct sheaf_dataset *dataset,
        struct sheaf_dataset_info *ret_info, struct sheaf_source *ret_source)
{
        struct fake_dataset *opened = (struct fake_dataset *)dataset;

        *ret_info = opened->info;
        *ret_source = opened->source;
}
