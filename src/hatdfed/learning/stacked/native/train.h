/* Training: forward and backward of one stage; included by stage.c.
 *
 * A server's real images are cut into blocks, by their number alone; what is summed over images is summed within a
 * block or image and then in order, so that results do not depend on the number of threads.
 */
enum {
    BORDER = 2 - PADDING, /* of the convolution's gradient, to get the gradient of x by a convolution without padding */
    SLOPE_ROW = (CONV_WIDTH + 2 * BORDER) * OUT,
    BACK_GROUP = GROUPED(CHANNELS_IN),
    BACK_FILTER = 9 * OUT * BACK_GROUP * LANES,
    BACK_FILTERS = VECTORS(CHANNELS_IN) / BACK_GROUP * BACK_FILTER,
    KEEPS_CONVOLVED = CHANNELS_IN > 4, /* else computing it anew is faster than fetching it from memory */
    TAP_SUMS = 9 * CHANNELS_IN * OUT,
    TAPS = 9 * CHANNELS_IN <= TILE_TAPS ? 9 * CHANNELS_IN : 3 * CHANNELS_IN,
    BAND = TAPS == 9 * CHANNELS_IN ? CONV_HEIGHT : 1 + 72 / CONV_WIDTH, /* rows */
};

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

static int64_t blocks_of(int64_t images) { /* a multiple of 4 is easy to share */
    const int64_t blocks = 4 * ((images + 15) / 16);
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

/* ---- forward ---- */

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
INLINE void pool_window(const float *first, const float *norm, int v, float *pooled, float *peak, unsigned char *which) {
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

void train_forward(Training *all, int wait) { work_through(&all->work, forward_task, forward_finish, all, wait); }

/* ---- backward ---- */

/* Weights turned around, inputs and outputs exchanged, for one vector of outputs. */
static void pack_back(const float *weight, float *filters, int v) {
    for (int o = v * LANES; o < (v + 1) * LANES; o++)
        for (int c = 0; c < VECTORS(CHANNELS_IN) * LANES; c++)
            for (int tap = 0; tap < 9; tap++)
                filters[c / (BACK_GROUP * LANES) * BACK_FILTER + ((8 - tap) * OUT + o) * BACK_GROUP * LANES +
                        c % (BACK_GROUP * LANES)] =
                    o < CHANNELS_OUT && c < CHANNELS_IN ? weight[(o * CHANNELS_IN + c) * 9 + tap] : 0;
}

static void widen(const unsigned char *from, int *to) {
    for (int i = 0; i < POOL_WIDTH * OUT; i++) to[i] = from[i];
}

/* Per image: the sums of the gradient after batch norm, and of it times the centred pixel. */
static void sum_block(const Training *all, Block block) {
    ALIGNED int which[POOL_WIDTH * OUT];
    for (int64_t i = block.first; i < block.last; i++) {
        float *sums = all->image_sums + i * 2 * OUT;
        memset(sums, 0, sizeof(float) * 2 * OUT);
        for (int64_t row = i * POOL_HEIGHT; row < (i + 1) * POOL_HEIGHT; row++) {
            const float *grad = all->grad_pooled + row * POOL_WIDTH * CHANNELS_OUT;
            const float *peak = all->peak + row * POOL_WIDTH * OUT;
            widen(all->which + row * POOL_WIDTH * OUT, which);
            for (int v = 0; v < OUT_VECTORS; v++) {
                vec sum = load(sums + v * LANES), product = load(sums + OUT + v * LANES);
                for (int x = 0; x < POOL_WIDTH; x++) {
                    const int at = x * OUT + v * LANES;
                    const ivec alive = *(ivec *)(which + at) < NONE;
                    const vec here = choose(alive, load_channels(grad + x * CHANNELS_OUT, v, CHANNELS_OUT), (vec){0});
                    sum += here;
                    product += here * load(peak + at);
                }
                store(sums + v * LANES, sum);
                store(sums + OUT + v * LANES, product);
            }
        }
    }
}

static void finish_sums(const Training *all, int64_t server) {
    const int64_t images = all->counts[server];
    const float pixels = images ? images * CONV_PIXELS : 1;
    const float *sums = all->image_sums + server * all->batch * 2 * OUT;
    float *norm = all->norm + server * NORM * OUT;
    for (int c = 0; c < CHANNELS_OUT; c++) {
        const float rstd = norm[RSTD * OUT + c], gain = norm[GAIN * OUT + c];
        float sum = 0, product = 0;
        for (int64_t i = 0; i < images; i++) {
            sum += sums[i * 2 * OUT + c];
            product += sums[(i * 2 + 1) * OUT + c];
        }
        all->grad_shift[server * CHANNELS_OUT + c] = sum;
        all->grad_scale[server * CHANNELS_OUT + c] = product * rstd;
        norm[OFFSET * OUT + c] = gain * sum / pixels;
        norm[SLANT * OUT + c] = gain * rstd * rstd * product / pixels;
    }
}

/* What every pixel's gradient has in common: that of the batch's mean and variance. */
static void slope_rows(const float *convolved, int row, const float *norm, float *slope, int rows) {
    for (int y = 0; y < rows; y++)
        for (int x = 0; x < CONV_WIDTH; x++)
            for (int v = 0; v < OUT_VECTORS; v++) {
                const vec away = load(norm + MEAN * OUT + v * LANES) - load(convolved + y * row + x * OUT + v * LANES);
                store(slope + y * SLOPE_ROW + x * OUT + v * LANES,
                      away * load(norm + SLANT * OUT + v * LANES) - load(norm + OFFSET * OUT + v * LANES));
            }
}

/* And what comes through pooling, for the pixel that won its window. */
static void slope_winners(const float *grad, const unsigned char *winners, const float *norm, float *slope) {
    ALIGNED int which[POOL_WIDTH * OUT];
    widen(winners, which);
    for (int x = 0; x < POOL_WIDTH; x++)
        for (int v = 0; v < OUT_VECTORS; v++) {
            const ivec winner = *(ivec *)(which + x * OUT + v * LANES);
            const vec here = load_channels(grad + x * CHANNELS_OUT, v, CHANNELS_OUT) * load(norm + GAIN * OUT + v * LANES);
            UNROLL for (int k = 0; k < 4; k++) {
                float *at = slope + k / 2 * SLOPE_ROW + (2 * x + k % 2) * OUT + v * LANES;
                store(at, load(at) + choose(winner == k, here, (vec){0}));
            }
        }
}

/* The gradient of one image's convolution, inside a border of zeros. */
static Source slope_image(const Training *all, int64_t server, int64_t i, Source in) {
    static _Thread_local ALIGNED float slope[(CONV_HEIGHT + 2 * BORDER) * SLOPE_ROW];
    const float *norm = all->norm + server * NORM * OUT;
    for (int y = 0; y < CONV_HEIGHT; y += 2) {
        const int rows = y + 1 < CONV_HEIGHT ? 2 : 1;
        float *to = slope + (y + BORDER) * SLOPE_ROW + BORDER * OUT;
        if (KEEPS_CONVOLVED) {
            slope_rows(all->convolved + i * CONV_SIZE + y * CONV_ROW, CONV_ROW, norm, to, rows);
        } else {
            convolve_some_rows(in, all->filters + server * FILTERS, to, y, rows, SLOPE_ROW);
            slope_rows(to, SLOPE_ROW, norm, to, rows);
        }
        const int64_t window = i * POOL_PIXELS + y / 2 * POOL_WIDTH;
        if (rows == 2)
            slope_winners(all->grad_pooled + window * CHANNELS_OUT, all->which + window * OUT, norm, to);
    }
    return (Source){slope, SLOPE_ROW, OUT};
}

/* Taps in tiles within a filter row, or all at once; rows of pixels in bands that stay in the L1 cache meanwhile. */
static void correlate_band(Source in, Source slope, int rows, float *sums) {
    enum { REST = TAPS % TILE_TAPS };
    for (int v = 0; v < OUT_VECTORS; v += GROUP)
        for (int first = 0; first < 9 * CHANNELS_IN; first += TAPS)
            for (int t = 0; t < TAPS; t += TILE_TAPS) {
                const Source from = {in.pixels + first / (3 * CHANNELS_IN) * IN_ROW + t, IN_ROW, CHANNELS_IN};
                const Source to = {slope.pixels + v * LANES, SLOPE_ROW, OUT};
                float *own = sums + (first + t) * OUT + v * LANES;
                if (t + TILE_TAPS <= TAPS)
                    correlate_tile(from, to, rows, CONV_WIDTH, own, TILE_TAPS, GROUP);
                else
                    correlate_tile(from, to, rows, CONV_WIDTH, own, REST, GROUP);
            }
}

static void correlate_image(Source in, Source slope, float *sums) {
    slope.pixels += BORDER * (SLOPE_ROW + OUT);
    for (int y = 0; y < CONV_HEIGHT; y += BAND) {
        correlate_band(in, slope, CONV_HEIGHT - y < BAND ? CONV_HEIGHT - y : BAND, sums);
        in.pixels += BAND * IN_ROW;
        slope.pixels += BAND * SLOPE_ROW;
    }
}

static void convolve_back(Source slope, const float *filters, float *grad_x) {
    for (int group = 0; group < VECTORS(CHANNELS_IN) / BACK_GROUP; group++)
        for (int y = 0; y < HEIGHT; y += 2) { /* leaving out filter rows that meet the border only */
            const int from = y + 1 < BORDER ? BORDER - 1 - y : 0, left = BORDER + CONV_HEIGHT - y;
            const Source rows = {slope.pixels + y * SLOPE_ROW, SLOPE_ROW, OUT};
            const Target to = {grad_x + y * WIDTH * CHANNELS_IN, WIDTH * CHANNELS_IN, CHANNELS_IN, BACK_GROUP};
            if (y + 1 < HEIGHT)
                convolve_rows(rows, filters + group * BACK_FILTER, from, left < 3 ? left : 3, to, group, 2, WIDTH);
            else
                convolve_rows(rows, filters + group * BACK_FILTER, from, left < 3 ? left : 3, to, group, 1, WIDTH);
        }
}

static void backward_block(const Training *all, int64_t server, int64_t number) {
    const Block block = block_of(all, server, number);
    float *sums = all->tap_sums + (server * all->blocks + number) * TAP_SUMS;
    memset(sums, 0, block.first < block.last ? sizeof(float) * TAP_SUMS : 0);
    for (int64_t i = block.first; i < block.last; i++) {
        const Source in = padded(all->x + i * IN_SIZE), slope = slope_image(all, server, i, in);
        correlate_image(in, slope, sums);
        if (all->grad_x) convolve_back(slope, all->back_filters + server * BACK_FILTERS, all->grad_x + i * IN_SIZE);
    }
}

/* Adds up the blocks' sums for one vector of outputs. */
static void add_blocks(const Training *all, int64_t server, int v) {
    const int64_t blocks = blocks_of(all->counts[server]);
    const float *sums = all->tap_sums + server * all->blocks * TAP_SUMS + v * LANES;
    for (int k = 0; k < 9 * CHANNELS_IN; k++) {
        vec sum = {0};
        for (int64_t b = 0; b < blocks; b++) sum += load(sums + b * TAP_SUMS + k * OUT);
        for (int lane = 0, o = v * LANES; lane < LANES && o < CHANNELS_OUT; lane++, o++)
            all->grad_weight[server * WEIGHTS + (o * CHANNELS_IN + k % CHANNELS_IN) * 9 + k / CHANNELS_IN] = sum[lane];
    }
}

static void backward_task(void *job, int phase, int64_t server, int64_t task) {
    const Training *all = job;
    if (phase == 0) pack_back(all->weight + server * WEIGHTS, all->back_filters + server * BACK_FILTERS, task);
    if (phase == 1) sum_block(all, block_of(all, server, task));
    if (phase == 1 && task == 0 && all->grad_x) clear_padding(all, server, all->grad_x, IN_SIZE);
    if (phase == 2) backward_block(all, server, task);
    if (phase == 3) add_blocks(all, server, task);
}

static void backward_finish(void *job, int phase, int64_t server) {
    if (phase == 1) finish_sums(job, server);
}

void train_backward(Training *all, int wait) { work_through(&all->work, backward_task, backward_finish, all, wait); }
