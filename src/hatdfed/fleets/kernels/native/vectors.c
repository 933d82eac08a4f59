/* Adam, the merge, the norms of models, the consensus distance and dropout: every number is read once. vectors.py
   calls it; rows are servers, or runs for the distance. */
#include <math.h>

#include "work.h"

enum { BLOCK = 1 << 14 }; /* numbers in a task: what it touches fits the L2 cache */

typedef struct {
    int64_t start, length;  /* where the tensor lies in a row of parameters */
    const float *gradient;  /* [rows, length] */
    int64_t apart;          /* from one row of it to the next */
} Segment;

typedef struct {
    Work work;
    int64_t segments;
    const Segment *segment;
    float *params, *first, *second;
    int64_t params_apart, first_apart, second_apart;
    const float *step, *unbias, *active; /* [rows] */
    double share_1, share_2, epsilon;
} AdamStep;

static void adam_block(int64_t n, float *restrict p, const float *restrict g, float *restrict m, float *restrict v,
                       float step, float unbias, float share_1, float share_2, float epsilon) {
    for (int64_t i = 0; i < n; i++) {
        m[i] += (g[i] - m[i]) * share_1;
        v[i] += (g[i] * g[i] - v[i]) * share_2;
        p[i] -= step * m[i] / (sqrtf(v[i] * unbias) + epsilon);
    }
}

static int64_t blocks_of(const Segment *segment) { return (segment->length + BLOCK - 1) / BLOCK; }

static void adam_task(void *job, int phase, int64_t row, int64_t task) {
    const AdamStep *all = job;
    const Segment *segment = all->segment;
    (void)phase;
    if (!all->active[row]) return;
    while (task >= blocks_of(segment)) task -= blocks_of(segment++);
    const int64_t from = task * BLOCK, left = segment->length - from, at = segment->start + from;
    adam_block(left < BLOCK ? left : BLOCK, all->params + row * all->params_apart + at,
               segment->gradient + row * segment->apart + from, all->first + row * all->first_apart + at,
               all->second + row * all->second_apart + at, all->step[row], all->unbias[row], all->share_1,
               all->share_2, all->epsilon);
}

typedef struct {
    Work work;
    int64_t length, slots;
    const float *weights;  /* [rows, slots]; slot 0 is the row's own model */
    const int64_t *sender; /* [rows, slots] */
    const float *own, *sent;
    float *out;
    int64_t own_apart, sent_apart, out_apart;
    double *square; /* [rows, blocks]: of what was written there */
} Merge;

typedef struct {
    Work work;
    int64_t length;
    const float *models;
    int64_t apart;
    double *square; /* [rows, blocks] */
} Norms;

enum { LANES = 16 };

/* In double precision no finite number overflows. It is slower, and hardly ever needed. */
static double large_square(int64_t n, const float *x) {
    double total = 0;
    for (int64_t i = 0; i < n; i++) total += (double)x[i] * x[i];
    return total;
}

static double square(int64_t n, const float *restrict x) {
    float lane[LANES] = {0};
    double total = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += x[i + l] * x[i + l];
    for (; i < n; i++) lane[0] += x[i] * x[i];
    for (int l = 0; l < LANES; l++) total += lane[l];
    return isfinite(total) ? total : large_square(n, x);
}

static void merge_task(void *job, int phase, int64_t row, int64_t task) {
    const Merge *all = job;
    const int64_t from = task * BLOCK, left = all->length - from, n = left < BLOCK ? left : BLOCK;
    const float *weight = all->weights + row * all->slots, *own = all->own + row * all->own_apart + from;
    float *restrict out = all->out + row * all->out_apart + from;
    (void)phase;
    /* A model without weight may hold anything, and 0 times that need not be 0. */
    for (int64_t i = 0; i < n; i++) out[i] = weight[0] == 0 ? 0 : weight[0] * own[i];
    for (int64_t slot = 1; slot < all->slots; slot++) {
        const float *restrict sent = all->sent + all->sender[row * all->slots + slot] * all->sent_apart + from;
        if (weight[slot] == 0) continue;
        for (int64_t i = 0; i < n; i++) out[i] += weight[slot] * sent[i];
    }
    all->square[row * ((all->length + BLOCK - 1) / BLOCK) + task] = square(n, out);
}

static void norms_task(void *job, int phase, int64_t row, int64_t task) {
    const Norms *all = job;
    const int64_t from = task * BLOCK, left = all->length - from;
    (void)phase;
    all->square[row * ((all->length + BLOCK - 1) / BLOCK) + task] =
        square(left < BLOCK ? left : BLOCK, all->models + row * all->apart + from);
}

typedef struct {
    Work work;
    int64_t length, servers;
    const float *models; /* [rows, servers, length] */
    int64_t run_apart, server_apart;
    double *apart;  /* [blocks, rows, servers]: squares of the distances to the mean */
    double *square; /* [blocks, rows]: of the mean */
} Distance;

static double sum_of_squares(int64_t n, const float *restrict x, const float *restrict minus) {
    float lane[LANES] = {0};
    double total = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            const float difference = x[i + l] - minus[i + l];
            lane[l] += difference * difference;
        }
    for (; i < n; i++) lane[0] += (x[i] - minus[i]) * (x[i] - minus[i]);
    for (int l = 0; l < LANES; l++) total += lane[l];
    return total;
}

static void distance_task(void *job, int phase, int64_t row, int64_t task) {
    static const float zero[BLOCK];
    const Distance *all = job;
    const int64_t from = task * BLOCK, left = all->length - from, n = left < BLOCK ? left : BLOCK;
    const int64_t place = task * all->work.servers + row;
    const float *models = all->models + row * all->run_apart + from, share = 1.0f / all->servers;
    float mean[BLOCK];
    (void)phase;
    for (int64_t i = 0; i < n; i++) mean[i] = share * models[i];
    for (int64_t s = 1; s < all->servers; s++) {
        const float *restrict model = models + s * all->server_apart;
        for (int64_t i = 0; i < n; i++) mean[i] += share * model[i];
    }
    for (int64_t s = 0; s < all->servers; s++)
        all->apart[place * all->servers + s] = sum_of_squares(n, models + s * all->server_apart, mean);
    all->square[place] = sum_of_squares(n, mean, zero);
}

typedef struct {
    Work work;
    int64_t size;         /* samples times units */
    const int64_t *seeds; /* [rows] */
    uint32_t salt, threshold;
    float scale;
    float *factors; /* [rows, size] */
} Dropout;

static uint32_t hash(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

static void dropout_task(void *job, int phase, int64_t row, int64_t task) {
    const Dropout *all = job;
    const int64_t from = task * BLOCK, to = from + BLOCK < all->size ? from + BLOCK : all->size;
    const uint32_t low = (uint32_t)all->seeds[row], high = (uint32_t)((uint64_t)all->seeds[row] >> 32);
    const uint32_t own = hash(low + all->salt), threshold = all->threshold;
    const float scale = all->scale;
    float *restrict factors = all->factors + row * all->size;
    (void)phase;
    for (int64_t i = from; i < to; i++)
        factors[i] = hash(hash((uint32_t)i + own) ^ high) >= threshold ? scale : 0;
}

static void nothing(void *job, int phase, int64_t row) { (void)job, (void)phase, (void)row; }

void adam_step(AdamStep *all) { work_through(&all->work, adam_task, nothing, all); }

void merge(Merge *all) { work_through(&all->work, merge_task, nothing, all); }

void norms(Norms *all) { work_through(&all->work, norms_task, nothing, all); }

void distance(Distance *all) { work_through(&all->work, distance_task, nothing, all); }

void dropout(Dropout *all) { work_through(&all->work, dropout_task, nothing, all); }
