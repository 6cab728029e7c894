/* SPDX-License-Identifier: Apache-2.0 */
/* The library as a plug-in: loaded by a program that does not know it, like an
 * extension of Python, used by threads that live on, and let go of. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

static void *lib;
static pthread_barrier_t barrier;

static void *symbol(const char *name)
{
        void *found = dlsym(lib, name);

        cr_assert_not_null(found, "%s", name);
        return found;
}

static void fail(void)
{
        int (*session_new)(const void *, void **);
        int (*dataset_open)(void *, const char *, void **);
        void (*session_free)(void *);
        const char *(*last_error)(void);
        void *session, *dataset;

        *(void **)&session_new = symbol("sheaf_session_new");
        *(void **)&dataset_open = symbol("sheaf_dataset_open");
        *(void **)&session_free = symbol("sheaf_session_free");
        *(void **)&last_error = symbol("sheaf_last_error");
        cr_assert_eq(session_new(NULL, &session), 0);
        cr_assert_eq(dataset_open(session, "", &dataset), -EINVAL);
        cr_assert_gt(strlen(last_error()), 0);
        session_free(session);
}

static void *thread_main(void *unused)
{
        (void)unused;
        fail();
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier); /* the library was closed */
        return NULL;
}

Test(load, by_dlopen_and_closed_under_a_thread)
{
        cr_assert_eq(pthread_barrier_init(&barrier, NULL, 2), 0);
        for (int round = 0; round < 3; round++) {
                pthread_t thread;

                lib = dlopen(LIBSHEAF, RTLD_NOW | RTLD_LOCAL);
                cr_assert_not_null(lib, "%s", dlerror());
                fail();
                cr_assert_eq(
                        pthread_create(&thread, NULL, thread_main, NULL), 0);
                pthread_barrier_wait(&barrier);
                cr_assert_eq(dlclose(lib), 0);
                pthread_barrier_wait(&barrier);
                pthread_join(thread, NULL);
        }
}
