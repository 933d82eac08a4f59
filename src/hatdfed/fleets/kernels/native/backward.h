/* Training: a stage's backward pass; included by stage.c after forward.h.
 *
 * After batch norm the gradient is 0 but for the pixels that won their window. The "slope" is the gradient after the
 * convolution: gain × (that − its mean − normed pixel × mean of that × normed pixel), for every pixel.
 */
enum {
    BORDER = 2 - PADDING, /* of the convolution's gradient, to get the gradient of x by a convolution without padding */
    SLOPE_ROW = (CONV_WIDTH + 2 * BORDER) * OUT,
    BACK_GROUP = GROUPED(CHANNELS_IN),
    BACK_FILTER = 9 * OUT * BACK_GROUP * LANES,
    BACK_FILTERS = VECTORS(CHANNELS_IN) / BACK_GROUP * BACK_FILTER,
    TAP_SUMS = 9 * CHANNELS_IN * OUT,
    TAPS = 9 * CHANNELS_IN <= TILE_TAPS ? 9 * CHANNELS_IN : 3 * CHANNELS_IN,
    BAND = TAPS == 9 * CHANNELS_IN ? CONV_HEIGHT : 1 + 72 / CONV_WIDTH, /* rows */
};

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
            const vec gain = load(norm + GAIN * OUT + v * LANES);
            const vec here = load_channels(grad + x * CHANNELS_OUT, v, CHANNELS_OUT) * gain;
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

void train_backward(Training *all) { work_through(&all->work, backward_task, backward_finish, all); }
