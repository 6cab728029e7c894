/* SPDX-License-Identifier: Apache-2.0 */
/* The library as a plug-in: loaded by a program that does not know it, like an
 * extension of Python, and let go of again. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <pthread.h>

static void *lib;

static void *fail_in_a_thread(void *unused)
{
        const char *(*last_error)(void);
        int (*connect_new)(const void *, void **);

        (void)unused;
        *(void **)&last_error = dlsym(lib, "sheaf_last_error");
        *(void **)&connect_new = dlsym(lib, "sheaf_dataset_open");
        cr_assert_not_null(last_error);
        cr_assert_not_null(connect_new);
        cr_assert_eq(last_error()[0], 0);
        return NULL;
}

Test(load, by_dlopen)
{
        for (int round = 0; round < 3; round++) {
                pthread_t thread;

                lib = dlopen(LIBSHEAF, RTLD_NOW | RTLD_LOCAL);
                cr_assert_not_null(lib, "%s", dlerror());
                fail_in_a_thread(NULL);
                cr_assert_eq(
                        pthread_create(&thread, NULL, fail_in_a_thread, NULL),
                        0);
                pthread_join(thread, NULL);
                cr_assert_eq(dlclose(lib), 0);
        }
}
