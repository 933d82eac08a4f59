/* Work that any number of threads share: each takes the next task until none is left.
 *
 * A server's tasks come in phases; a phase begins when the server's earlier phases have ended. Tasks are taken in an
 * order in which all that a task waits for was taken before it, hence is being worked on: one thread alone gets
 * through, and no thread waits for one that has not started.
 */
#include <sched.h>
#include <stdint.h>

enum { PHASES = 4 };

typedef struct {
    int64_t servers, next;
    int64_t tasks[PHASES]; /* per server */
    int64_t *ended;        /* [phase][server]: tasks that have ended, and one more once `finish` has */
} Work;

typedef void Task(void *job, int phase, int64_t server, int64_t task);
typedef void Finish(void *job, int phase, int64_t server); /* after the last task of a phase */

static void await(const Work *work, int phase, int64_t server) {
    const int64_t *ended = work->ended + phase * work->servers + server;
    for (int spin = 0; work->tasks[phase] && __atomic_load_n(ended, __ATOMIC_ACQUIRE) <= work->tasks[phase]; spin++)
        if (spin > 1000) sched_yield();
}

/* Returns when all tasks have ended, also those that other threads took. Server s's phase p runs in step s + p, so
 * that its data are still in the cache and other servers' tasks fill the wait. */
static void work_through(Work *work, Task *task, Finish *finish, void *job) {
    int64_t per_step = 0, slot;
    for (int p = 0; p < PHASES; p++) per_step += work->tasks[p];
    const int64_t slots = per_step * (work->servers + PHASES - 1);
    while ((slot = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < slots) {
        int phase = 0;
        int64_t number = slot % per_step;
        while (number >= work->tasks[phase]) number -= work->tasks[phase++];
        const int64_t server = slot / per_step - phase;
        if (server < 0 || server >= work->servers) continue;
        for (int p = 0; p < phase; p++) await(work, p, server);
        task(job, phase, server, number);
        int64_t *ended = work->ended + phase * work->servers + server;
        if (__atomic_add_fetch(ended, 1, __ATOMIC_ACQ_REL) == work->tasks[phase]) {
            finish(job, phase, server);
            __atomic_store_n(ended, work->tasks[phase] + 1, __ATOMIC_RELEASE);
        }
    }
    for (int p = 0; p < PHASES; p++)
        for (int64_t s = 0; s < work->servers; s++) await(work, p, s);
}
