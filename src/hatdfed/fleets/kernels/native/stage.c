/* One stage — 3×3 convolution, batch norm, ReLU, 2×2 max pooling — compiled for one shape, given by the macros
 * CHANNELS_IN, CHANNELS_OUT, HEIGHT, WIDTH (of images that come in) and PADDING. stages.py calls it.
 */
#include "tiles.h"
#include "work.h"

enum {
    IN_ROW = (WIDTH + 2 * PADDING) * CHANNELS_IN, /* with its border */
    IN_SIZE = HEIGHT * WIDTH * CHANNELS_IN,
    OUT_VECTORS = VECTORS(CHANNELS_OUT),
    OUT = OUT_VECTORS * LANES, /* channels with those that fill the last vector: always 0 */
    GROUP = GROUPED(CHANNELS_OUT),
    CONV_HEIGHT = HEIGHT + 2 * PADDING - 2,
    CONV_WIDTH = WIDTH + 2 * PADDING - 2,
    CONV_PIXELS = CONV_HEIGHT * CONV_WIDTH,
    CONV_ROW = CONV_WIDTH * OUT,
    CONV_SIZE = CONV_PIXELS * OUT,
    POOL_HEIGHT = CONV_HEIGHT / 2,
    POOL_WIDTH = CONV_WIDTH / 2,
    POOL_PIXELS = POOL_HEIGHT * POOL_WIDTH,
    POOL_SIZE = POOL_PIXELS * CHANNELS_OUT,
    WEIGHTS = CHANNELS_OUT * CHANNELS_IN * 9,
    FILTER = 9 * CHANNELS_IN * GROUP * LANES, /* of one group */
    FILTERS = OUT_VECTORS / GROUP * FILTER,
};

/* Weights [output][input][tap] -> filters, for one vector of outputs. */
static void pack_outputs(const float *weight, float *filters, int v) {
    float *to = filters + v / GROUP * FILTER + v % GROUP * LANES;
    for (int k = 0; k < 9 * CHANNELS_IN; k++)
        for (int lane = 0, tap = k / CHANNELS_IN, c = k % CHANNELS_IN; lane < LANES; lane++) {
            const int o = v * LANES + lane;
            to[k * GROUP * LANES + lane] = o < CHANNELS_OUT ? weight[(o * CHANNELS_IN + c) * 9 + tap] : 0;
        }
}

static Source padded(const float *image) {
    static _Thread_local ALIGNED float copy[(HEIGHT + 2 * PADDING) * IN_ROW]; /* nobody writes its border of zeros */
    if (!PADDING) return (Source){image, IN_ROW, CHANNELS_IN};
    for (int y = 0; y < HEIGHT; y++)
        memcpy(copy + (y + PADDING) * IN_ROW + PADDING * CHANNELS_IN, image + y * WIDTH * CHANNELS_IN,
               sizeof(float) * WIDTH * CHANNELS_IN);
    return (Source){copy, IN_ROW, CHANNELS_IN};
}

/* ---- inference ---- */

INLINE void infer_tile(Source in, const float *filter, const float *bias, float *pooled, int group, int pixels) {
    vec sums[2 * TILE_PIXELS * 2];
    UNROLL for (int i = 0; i < 2 * pixels * GROUP; i++)
        sums[i] = load_channels(bias, group * GROUP + i % GROUP, CHANNELS_OUT);
    convolve_tile(sums, in, filter, 0, 3, 2, pixels, GROUP);
    UNROLL for (int p = 0; p < pixels; p += 2) {
        UNROLL for (int v = 0; v < GROUP; v++) {
            const vec *top = sums + p * GROUP + v, *bottom = top + pixels * GROUP;
            const vec largest = larger(larger(top[0], top[GROUP]), larger(bottom[0], bottom[GROUP]));
            store_channels(pooled + p / 2 * CHANNELS_OUT, group * GROUP + v, positive(largest), CHANNELS_OUT);
        }
    }
}

static void infer_image(const float *image, const float *filters, const float *bias, float *pooled) {
    enum { PAIRS = TILE_PIXELS / 2, TILES = (POOL_WIDTH + PAIRS - 1) / PAIRS };
    const int narrow = POOL_WIDTH / TILES, wider = POOL_WIDTH % TILES;
    const Source in = padded(image);
    for (int group = 0; group < OUT_VECTORS / GROUP; group++) /* outermost: a group's filter fits the L1 cache */
        for (int y = 0; y < POOL_HEIGHT; y++)
            for (int t = 0, x = 0; t < TILES; x += narrow + (t < wider), t++) {
                const Source tile = {in.pixels + 2 * y * IN_ROW + 2 * x * CHANNELS_IN, IN_ROW, CHANNELS_IN};
                float *to = pooled + (y * POOL_WIDTH + x) * CHANNELS_OUT;
                if (t < wider)
                    infer_tile(tile, filters + group * FILTER, bias, to, group, 2 * narrow + 2);
                else
                    infer_tile(tile, filters + group * FILTER, bias, to, group, 2 * narrow);
            }
}

enum { TOGETHER = 8 }; /* images that go through all stages before the next ones do */

#include "winograd.h"

/* What `infer_images` wants. */
void pack(const float *weight, float *filters) {
    if (WINOGRAD)
        pack_points(weight, filters);
    else
        for (int v = 0; v < OUT_VECTORS; v++) pack_outputs(weight, filters, v);
}

/* Up to TOGETHER images; without `pooled` into memory of this thread, which its next images overwrite. */
const float *infer_images(int64_t count, const float *images, const float *filters, const float *bias, float *pooled) {
    static _Thread_local ALIGNED float own[TOGETHER * POOL_SIZE];
    pooled = pooled ? pooled : own;
    if (WINOGRAD)
        infer_winograd(count, images, filters, bias, pooled);
    else
        for (int64_t i = 0; i < count; i++) infer_image(images + i * IN_SIZE, filters, bias, pooled + i * POOL_SIZE);
    return pooled;
}

typedef struct {
    void (*pack)(const float *, float *);
    const float *(*infer_images)(int64_t, const float *, const float *, const float *, float *);
    const float *weight, *bias; /* of all servers */
    float *filters;
    int64_t weights, filter, channels; /* how much of them is one server's */
} Layer;

typedef struct {
    Work work;
    int64_t images, per_task, in_size, out_size, shared; /* shared: all servers have the same images */
    const float *x;
    float *out;
    int64_t layers;
    const Layer *layer;
    int64_t features, outputs, padded_outputs; /* of the fully connected layer behind the stages; 0: there is none */
    const float *head, *head_bias;             /* [servers][features][padded_outputs], [servers][padded_outputs] */
} Inference;

/* The fully connected layer, of up to TOGETHER images: they share the weights, and their sums do not wait for each
 * other. What is in memory behind the last image is computed along and not looked at. */
static void answer(const Inference *all, int64_t server, int64_t count, const float *features, float *out) {
    const int64_t step = all->padded_outputs;
    for (int64_t v = 0; v < all->outputs; v += LANES) {
        const float *weight = all->head + server * all->features * step + v;
        vec sums[TOGETHER];
        UNROLL for (int k = 0; k < TOGETHER; k++) sums[k] = load(all->head_bias + server * step + v);
        for (int64_t f = 0, end; f < all->features; f = end) { /* sums of sums: many small terms in a row lose digits */
            vec part[TOGETHER] = {{0}};
            end = f + 64 < all->features ? f + 64 : all->features;
            for (int64_t i = f; i < end; i++) {
                const vec weights = load(weight + i * step);
                UNROLL for (int k = 0; k < TOGETHER; k++) part[k] += weights * features[k * all->features + i];
            }
            UNROLL for (int k = 0; k < TOGETHER; k++) sums[k] += part[k];
        }
        const int64_t left = all->outputs - v < LANES ? all->outputs - v : LANES;
        for (int64_t k = 0; k < count; k++) memcpy(out + k * all->outputs + v, sums + k, sizeof(float) * left);
    }
}

static void infer_task(void *job, int phase, int64_t server, int64_t task) {
    const Inference *all = job;
    if (phase == 0) {
        const Layer *layer = all->layer + task;
        layer->pack(layer->weight + server * layer->weights, layer->filters + server * layer->filter);
        return;
    }
    const int64_t end = (task + 1) * all->per_task, last = end < all->images ? end : all->images;
    for (int64_t i = task * all->per_task; i < last; i += TOGETHER) {
        const int64_t count = last - i < TOGETHER ? last - i : TOGETHER;
        const float *images = all->x + ((all->shared ? 0 : server * all->images) + i) * all->in_size;
        float *out = all->out + (server * all->images + i) * all->out_size;
        for (const Layer *layer = all->layer; layer < all->layer + all->layers; layer++) {
            const int ends_here = layer == all->layer + all->layers - 1 && !all->outputs;
            images = layer->infer_images(count, images, layer->filters + server * layer->filter,
                                         layer->bias + server * layer->channels, ends_here ? out : 0);
        }
        if (all->outputs) answer(all, server, count, images, out);
    }
}

static void nothing(void *job, int phase, int64_t server) { (void)job, (void)phase, (void)server; }

void infer(Inference *all) { work_through(&all->work, infer_task, nothing, all); }

#include "forward.h"

#include "backward.h"

/* What stages.py must know to allocate memory, in floats or bytes. */
const int64_t sizes[] = {OUT, FILTERS, BACK_FILTERS, KEEPS_CONVOLVED ? CONV_SIZE : 0, OUT_VECTORS,
                         WINOGRAD ? POINT_FILTERS : FILTERS};
