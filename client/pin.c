/* SPDX-License-Identifier: Apache-2.0 */
/* Slow paths of pinning: slots, stripes of threads, the grant's bytes.
 *
 *  1 charged_bytes of a pinner counts its held pins and the spare bytes of
 *    threads; it is raised before a publication, and never above the grant
 *  2 a thread has spare bytes of one pinner at a time; they go back when it
 *    turns to another one or ends
 *  3 a stripe belongs to one living thread, as long as there are enough
 *  4 the mark covers a slot before a word is in it
 *  5 brief_bytes counts what transient pins hold from before the publication
 *    until after the slot is cleared, and is never above its bound
 *
 *  6 a slot in use at a fork that is held for is not cleared before it is
 *    settled, nor used for another pin
 *
 * Locks: registry_lock guards the list of live pinners, so that a thread's
 * spare bytes never go back to one that is gone, and what is held back. It is
 * taken by init, fini, a thread's change to another pinner and its end, around
 * forks, and by whoever gives back while something is held. */
#include "client/pin.h"

#include <pthread.h>

#define STRIPES          (SHEAF_HAZARD_SLOTS / SHEAF_PIN_STRIPE_SLOTS)
#define REFILL_BYTES     (UINT64_C(1) << 20)
#define SLOTS_PER_LINE   8
#define SPARE_MAX        (UINT64_C(4) << 20)
#define OWNER_PAGE_BYTES 4096

_Thread_local struct sheaf_pin_thread sheaf_pin_thread;

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sheaf_pinner *registry;
static uint64_t last_id;

static _Atomic uint64_t stripes_taken[STRIPES / 64];
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;
static pthread_key_t thread_key;
static bool thread_key_made;

void sheaf_pinners_lock(void)
{
        pthread_mutex_lock(&registry_lock);
}

void sheaf_pinners_unlock(void)
{
        pthread_mutex_unlock(&registry_lock);
}

/* ---- threads ---- */

/* Spare bytes go back to their pinner, if that still lives. */
static void settle_spare(void)
{
        struct sheaf_pin_thread *me = &sheaf_pin_thread;

        if (!me->pinner_id)
                return;
        sheaf_pinners_lock();
        for (struct sheaf_pinner *p = registry; p; p = p->next)
                if (p->id == me->pinner_id)
                        atomic_fetch_sub_explicit(&p->charged_bytes,
                                me->spare_bytes, memory_order_release);
        sheaf_pinners_unlock();
        me->spare_bytes = 0;
        me->pinner_id = 0;
}

static void thread_end(void *arg)
{
        uint32_t stripe = sheaf_pin_thread.stripe;

        (void)arg;
        settle_spare();
        sheaf_pin_thread.stripe = 0;
        if (stripe && stripe <= STRIPES)
                atomic_fetch_and_explicit(&stripes_taken[(stripe - 1) / 64],
                        ~(UINT64_C(1) << (stripe - 1) % 64),
                        memory_order_release);
}

static void make_key(void)
{
        thread_key_made = pthread_key_create(&thread_key, thread_end) == 0;
}

/* The lowest free stripe, so that marks stay low; with none left, and
 * without a way to hear of the thread's end, the last one is shared. */
static void take_stripe(void)
{
        struct sheaf_pin_thread *me = &sheaf_pin_thread;

        pthread_once(&thread_once, make_key);
        me->stripe = STRIPES + 1;
        if (thread_key_made && pthread_setspecific(thread_key, me) == 0)
                for (uint32_t i = 0; i < STRIPES; i++) {
                        uint64_t bit = UINT64_C(1) << i % 64;

                        if (atomic_fetch_or_explicit(&stripes_taken[i / 64],
                                    bit, memory_order_acquire) &
                                bit)
                                continue;
                        me->stripe = i + 1;
                        break;
                }
        me->slot = SHEAF_MIN(me->stripe - 1, (uint32_t)STRIPES - 1) *
                   SHEAF_PIN_STRIPE_SLOTS;
}

struct sheaf_meter_stripe *sheaf_pin_meter_slow(
        struct sheaf_meter *meter, bool *ret_shared)
{
        if (!sheaf_pin_thread.stripe)
                take_stripe();
        if (sheaf_pin_thread.stripe < SHEAF_METER_STRIPES)
                return &meter->stripe[sheaf_pin_thread.stripe - 1];
        *ret_shared = true;
        return &meter->stripe[SHEAF_METER_STRIPES - 1];
}

/* ---- slots ---- */

static bool claim_one(struct sheaf_hazard *hazard, uint32_t at, uint64_t word)
{
        /* A cache line's worth of slots at once: the mark is shared. */
        uint32_t mark = at / SLOTS_PER_LINE * SLOTS_PER_LINE + SLOTS_PER_LINE;

        if (atomic_load_explicit(&hazard->slot[at], memory_order_relaxed))
                return false;
#ifdef SHEAF_MUTANT_MARK_AFTER_SLOT
        if (!sheaf_pin_publish(&hazard->slot[at], word))
                return false;
        atomic_store_explicit(&hazard->high_water, mark, memory_order_release);
        return true;
#else
        sheaf_pin_raise_mark(hazard, mark);
        return sheaf_pin_publish(&hazard->slot[at], word);
#endif
}

_Atomic uint64_t *sheaf_pin_claim(struct sheaf_pinner *pinner, uint64_t word)
{
        struct sheaf_pin_thread *me = &sheaf_pin_thread;
        struct sheaf_hazard *hazard = pinner->hazard;

        if (!me->stripe)
                take_stripe();
        for (uint32_t i = 0; i < SHEAF_HAZARD_SLOTS; i++) {
                uint32_t at = (me->slot + i) % SHEAF_HAZARD_SLOTS;

                if (!claim_one(hazard, at, word))
                        continue;
                me->slot = at;
                return &hazard->slot[at];
        }
        return NULL;
}

/* ---- bytes ---- */

/* Small grants are not to be split up into spare bytes of threads. */
static uint64_t spare_max(const struct sheaf_pinner *pinner)
{
        uint64_t grant = atomic_load_explicit(
                &pinner->grant_bytes, memory_order_relaxed);

        return SHEAF_MIN(SPARE_MAX, grant / 16);
}

static bool charge(struct sheaf_pinner *pinner, uint64_t bytes)
{
        uint64_t grant = atomic_load_explicit(
                &pinner->grant_bytes, memory_order_relaxed);
        uint64_t seen = atomic_load_explicit(
                &pinner->charged_bytes, memory_order_relaxed);

        do {
                if (seen > grant || bytes > grant - seen)
                        return false;
        } while (!atomic_compare_exchange_weak_explicit(&pinner->charged_bytes,
                &seen, seen + bytes, memory_order_relaxed,
                memory_order_relaxed));
        return true;
}

int sheaf_pin_refill(struct sheaf_pinner *pinner, uint32_t len_bytes)
{
        struct sheaf_pin_thread *me = &sheaf_pin_thread;
        uint64_t need, step;

        if (!me->stripe)
                take_stripe();
        if (me->pinner_id != pinner->id) {
                settle_spare();
                me->pinner_id = pinner->id;
        }
        me->spare_max_bytes = spare_max(pinner);
        if (me->spare_bytes >= len_bytes)
                return 0;
        need = len_bytes - me->spare_bytes;
        step = SHEAF_MAX(need, SHEAF_MIN(REFILL_BYTES, spare_max(pinner) / 4));
        if (!charge(pinner, step)) {
                step = need;
                if (!charge(pinner, step))
                        return -EDQUOT;
        }
        me->spare_bytes += step;
        return 0;
}

void sheaf_pin_give_back(struct sheaf_pinner *pinner, uint64_t bytes)
{
        struct sheaf_pin_thread *me = &sheaf_pin_thread;
        uint64_t keep = SHEAF_MIN(REFILL_BYTES, spare_max(pinner) / 4);

        if (me->pinner_id == pinner->id) {
                bytes += me->spare_bytes;
                me->spare_bytes = SHEAF_MIN(keep, bytes);
                bytes -= me->spare_bytes;
        }
        /* Release: who sees zero may unmap what was read until now. */
        atomic_fetch_sub_explicit(
                &pinner->charged_bytes, bytes, memory_order_release);
}

int sheaf_pin_brief_take(struct sheaf_pinner *pinner, uint64_t bytes)
{
        uint64_t max = atomic_load_explicit(
                &pinner->brief_max_bytes, memory_order_relaxed);
        uint64_t seen = atomic_load_explicit(
                &pinner->brief_bytes, memory_order_relaxed);

        do {
                if (bytes > max || seen > max - bytes)
                        return -EDQUOT;
        } while (!atomic_compare_exchange_weak_explicit(&pinner->brief_bytes,
                &seen, seen + bytes, memory_order_relaxed,
                memory_order_relaxed));
        return 0;
}

/* ---- forks ---- */

void sheaf_pinner_hold(struct sheaf_pinner *pinner)
{
        uint64_t mark = sheaf_pin_mark(pinner->hazard);
        uint64_t own = atomic_load_explicit(
                               &pinner->charged_bytes, memory_order_relaxed) -
                       pinner->held_back_bytes;

        atomic_fetch_add_explicit(
                &pinner->charged_bytes, own, memory_order_relaxed);
        pinner->held_back_bytes += own;
        atomic_store_explicit(pinner->owner, pinner->id | SHEAF_PIN_HOLDS_BACK,
                memory_order_seq_cst);
        for (uint64_t i = 0; i < mark; i++)
                if (sheaf_pin_held(&pinner->hazard->slot[i]))
                        pinner->at_fork[i / 64] |= UINT64_C(1) << i % 64;
}

void sheaf_pinner_settle(struct sheaf_pinner *pinner)
{
        sheaf_pinners_lock();
        atomic_store_explicit(pinner->owner, pinner->id, memory_order_seq_cst);
        for (uint64_t i = 0; i < sheaf_pin_mark(pinner->hazard); i++)
                if (pinner->given_back[i / 64] >> i % 64 & 1)
                        sheaf_pin_clear(&pinner->hazard->slot[i]);
        memset(pinner->at_fork, 0, sizeof(pinner->at_fork));
        memset(pinner->given_back, 0, sizeof(pinner->given_back));
        atomic_fetch_sub_explicit(&pinner->charged_bytes,
                pinner->held_back_bytes, memory_order_release);
        pinner->held_back_bytes = 0;
        sheaf_pinners_unlock();
}

bool sheaf_pin_stays(struct sheaf_pinner *pinner, const _Atomic uint64_t *slot)
{
        size_t at = (size_t)(slot - pinner->hazard->slot);
        uint64_t bit = UINT64_C(1) << at % 64;
        bool stays;

        sheaf_pinners_lock();
        /* It was settled meanwhile: nothing is in at_fork. */
        stays = pinner->at_fork[at / 64] & bit;
        if (stays)
                pinner->given_back[at / 64] |= bit;
        sheaf_pinners_unlock();
        return stays;
}

/* ---- pinners ---- */

int sheaf_pinner_init(struct sheaf_pinner *pinner, struct sheaf_hazard *hazard,
        const struct sheaf_pin_map *map, uint64_t grant_bytes)
{
        _Atomic uint64_t *owner;

        if (hazard->magic != SHEAF_HAZARD_MAGIC ||
                hazard->layout != SHEAF_SHM_LAYOUT ||
                hazard->slot_count != SHEAF_HAZARD_SLOTS)
                return -EPROTO;
        owner = mmap(NULL, OWNER_PAGE_BYTES, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (owner == MAP_FAILED)
                return -ENOMEM;
        if (madvise(owner, OWNER_PAGE_BYTES, MADV_WIPEONFORK) < 0 ||
                madvise(hazard, sizeof(*hazard), MADV_DONTFORK) < 0) {
                munmap(owner, OWNER_PAGE_BYTES);
                return -ENOMEM;
        }
        memset(pinner, 0, sizeof(*pinner));
        pinner->hazard = hazard;
        pinner->map = *map;
        pinner->owner = owner;
        atomic_init(&pinner->grant_bytes, grant_bytes);
        atomic_init(&pinner->brief_max_bytes, UINT64_MAX);
        sheaf_pinners_lock();
        pinner->id = ++last_id;
        atomic_store_explicit(owner, pinner->id, memory_order_relaxed);
        pinner->next = registry;
        registry = pinner;
        sheaf_pinners_unlock();
        return 0;
}

void sheaf_pinner_fini(struct sheaf_pinner *pinner)
{
        sheaf_pinners_lock();
        for (struct sheaf_pinner **at = &registry; *at; at = &(*at)->next)
                if (*at == pinner) {
                        *at = pinner->next;
                        break;
                }
        sheaf_pinners_unlock();
        munmap((void *)pinner->owner, OWNER_PAGE_BYTES);
}

void sheaf_pinner_set_grant(struct sheaf_pinner *pinner, uint64_t grant_bytes)
{
        atomic_store_explicit(
                &pinner->grant_bytes, grant_bytes, memory_order_relaxed);
}

void sheaf_pinner_set_brief(struct sheaf_pinner *pinner, uint64_t bytes)
{
        atomic_store_explicit(
                &pinner->brief_max_bytes, bytes, memory_order_relaxed);
}
