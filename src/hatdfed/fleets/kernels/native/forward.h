/* Training: a stage's forward pass, and what the backward pass shares with it; included by stage.c.
 *
 * A server's real images are cut into blocks, by their number alone; what is summed over images is summed within a
 * block or image and then in order, so that results do not depend on the number of threads.
 */
enum { KEEPS_CONVOLVED = CHANNELS_IN > 4 }; /* else computing it anew is faster than fetching it from memory */

typedef struct {
    Work work;
    int64_t batch, blocks;
    const int64_t *counts;
    double epsilon;
    const float *x, *weight, *scale, *shift;
    float *filters, *convolved; /* [server][FILTERS], [image][CONV_SIZE] unless computed anew */
    float *image_sums;          /* [image][2][OUT] */
    float *norm;                /* [server][NORM][OUT] */
    float *pooled, *mean, *variance;
    float *peak;          /* [image][POOL_PIXELS][OUT], the pixel that won its window, minus the mean */
    unsigned char *which; /* likewise, its number in the window, or NONE */
    const float *grad_pooled;
    float *grad_x, *grad_weight, *grad_scale, *grad_shift; /* grad_x may be missing */
    float *back_filters, *tap_sums;                        /* [server][BACK_FILTERS], [server][block][TAP_SUMS] */
} Training;

enum { MEAN, RSTD, GAIN, SHIFT, OFFSET, SLANT, NORM }; /* per channel; the last two are for the backward pass */
enum { NONE = 4 };
typedef unsigned char bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

typedef struct {
    int64_t first, last;
} Block;

static int64_t blocks_of(int64_t images) { /* of about 8; an even number is easy to share */
    const int64_t blocks = 2 * ((images + 15) / 16);
    return images < blocks ? images : blocks;
}

static Block block_of(const Training *all, int64_t server, int64_t number) {
    const int64_t images = all->counts[server], blocks = blocks_of(images), base = server * all->batch;
    if (number >= blocks) return (Block){base, base};
    return (Block){base + images * number / blocks, base + images * (number + 1) / blocks};
}

static void clear_padding(const Training *all, int64_t server, float *images, int64_t size) {
    const int64_t real = all->counts[server];
    memset(images + (server * all->batch + real) * size, 0, sizeof(float) * size * (all->batch - real));
}

INLINE void convolve_group(Source in, const float *filters, float *out, int row, int out_row, int group, int rows) {
    const Source from = {in.pixels + row * IN_ROW, IN_ROW, CHANNELS_IN};
    convolve_rows(from, filters + group * FILTER, 0, 3, (Target){out, out_row, OUT, GROUP}, group, rows, CONV_WIDTH);
}

static void convolve_image(Source in, const float *filters, float *out) {
    for (int group = 0; group < OUT_VECTORS / GROUP; group++) {
        for (int y = 0; y < CONV_HEIGHT - 1; y += 2)
            convolve_group(in, filters, out + y * CONV_ROW, y, CONV_ROW, group, 2);
        if (CONV_HEIGHT % 2)
            convolve_group(in, filters, out + (CONV_HEIGHT - 1) * CONV_ROW, CONV_HEIGHT - 1, CONV_ROW, group, 1);
    }
}

static void convolve_some_rows(Source in, const float *filters, float *out, int row, int rows, int out_row) {
    for (int group = 0; group < OUT_VECTORS / GROUP; group++)
        if (rows == 2)
            convolve_group(in, filters, out, row, out_row, group, 2);
        else
            convolve_group(in, filters, out, row, out_row, group, 1);
}

INLINE vec sum_pixels(const float *convolved, vec centre, int squared) {
    vec part[4] = {{0}, {0}, {0}, {0}}; /* additions wait for each other within a part only */
    for (int p = 0; p + 4 <= CONV_PIXELS; p += 4) {
        UNROLL for (int i = 0; i < 4; i++) {
            vec away = load(convolved + (p + i) * OUT) - centre;
            if (squared) away *= away;
            part[i] += away;
        }
    }
    for (int p = CONV_PIXELS / 4 * 4; p < CONV_PIXELS; p++) {
        vec away = load(convolved + p * OUT) - centre;
        if (squared) away *= away;
        part[0] += away;
    }
    return (part[0] + part[1]) + (part[2] + part[3]);
}

/* An image's mean and sum of squares about it; the two passes find the image in the cache. */
static void sum_image(const float *convolved, float *sums) {
    for (int v = 0; v < OUT_VECTORS; v++) {
        const vec mean = sum_pixels(convolved + v * LANES, (vec){0}, 0) / (float)CONV_PIXELS;
        store(sums + v * LANES, mean);
        store(sums + OUT + v * LANES, sum_pixels(convolved + v * LANES, mean, 1));
    }
}

static void convolve_block(const Training *all, int64_t server, Block block) {
    static _Thread_local ALIGNED float own[KEEPS_CONVOLVED ? 1 : CONV_SIZE];
    for (int64_t i = block.first; i < block.last; i++) {
        float *convolved = KEEPS_CONVOLVED ? all->convolved + i * CONV_SIZE : own;
        convolve_image(padded(all->x + i * IN_SIZE), all->filters + server * FILTERS, convolved);
        sum_image(convolved, all->image_sums + i * 2 * OUT);
    }
}

static void normalise(const Training *all, int64_t server) {
    const int64_t images = all->counts[server];
    const float *sums = all->image_sums + server * all->batch * 2 * OUT;
    float *norm = all->norm + server * NORM * OUT;
    memset(norm, 0, sizeof(float) * NORM * OUT);
    for (int c = 0; c < CHANNELS_OUT; c++) {
        const int64_t own = server * CHANNELS_OUT + c;
        float mean = 0, squares = 0;
        for (int64_t i = 0; i < images; i++) mean += sums[i * 2 * OUT + c];
        mean /= images ? images : 1;
        for (int64_t i = 0; i < images; i++) {
            const float away = sums[i * 2 * OUT + c] - mean;
            squares += sums[(i * 2 + 1) * OUT + c] + CONV_PIXELS * away * away;
        }
        all->mean[own] = norm[MEAN * OUT + c] = mean;
        all->variance[own] = squares / (images ? images * CONV_PIXELS : 1);
        norm[RSTD * OUT + c] = 1 / __builtin_sqrtf(all->variance[own] + (float)all->epsilon);
        norm[GAIN * OUT + c] = all->scale[own] * norm[RSTD * OUT + c];
        norm[SHIFT * OUT + c] = all->shift[own];
    }
}

/* Vector v of one window, whose first pixel is given. */
INLINE void pool_window(const float *first, const float *norm, int v, float *pooled, float *peak,
                        unsigned char *which) {
    vec best = {0}, away = {0};
    ivec winner = {0};
    UNROLL for (int k = 0; k < 4; k++) {
        const vec here = load(first + k / 2 * CONV_ROW + k % 2 * OUT + v * LANES) - load(norm + MEAN * OUT + v * LANES);
        const vec normed = here * load(norm + GAIN * OUT + v * LANES) + load(norm + SHIFT * OUT + v * LANES);
        ivec wins = normed > best;
        if (k == 0) wins = ~(ivec){0};
        best = choose(wins, normed, best);
        away = choose(wins, here, away);
        winner = (wins & k) | (~wins & winner);
    }
    const ivec alive = best > 0;
    store_channels(pooled, v, positive(best), CHANNELS_OUT);
    store(peak + v * LANES, away);
    *(bytes *)(which + v * LANES) = __builtin_convertvector((alive & winner) | (~alive & NONE), bytes);
}

static void pool_block(const Training *all, int64_t server, Block block) {
    static _Thread_local ALIGNED float own[2 * CONV_ROW];
    const float *norm = all->norm + server * NORM * OUT;
    for (int64_t i = block.first; i < block.last; i++) {
        const Source in = padded(all->x + i * IN_SIZE);
        for (int y = 0; y < POOL_HEIGHT; y++) {
            const float *rows = KEEPS_CONVOLVED ? all->convolved + i * CONV_SIZE + 2 * y * CONV_ROW : own;
            if (!KEEPS_CONVOLVED)
                convolve_some_rows(in, all->filters + server * FILTERS, own, 2 * y, 2, CONV_ROW);
            for (int x = 0; x < POOL_WIDTH; x++) {
                const int64_t window = i * POOL_PIXELS + y * POOL_WIDTH + x;
                for (int v = 0; v < OUT_VECTORS; v++)
                    pool_window(rows + 2 * x * OUT, norm, v, all->pooled + window * CHANNELS_OUT,
                                all->peak + window * OUT, all->which + window * OUT);
            }
        }
    }
}

static void forward_task(void *job, int phase, int64_t server, int64_t task) {
    const Training *all = job;
    if (phase == 0) pack_outputs(all->weight + server * WEIGHTS, all->filters + server * FILTERS, task);
    if (phase == 1) convolve_block(all, server, block_of(all, server, task));
    if (phase == 2) pool_block(all, server, block_of(all, server, task));
    if (phase == 2 && task == 0) clear_padding(all, server, all->pooled, POOL_SIZE);
}

static void forward_finish(void *job, int phase, int64_t server) {
    if (phase == 1) normalise(job, server);
}

void train_forward(Training *all) { work_through(&all->work, forward_task, forward_finish, all); }
