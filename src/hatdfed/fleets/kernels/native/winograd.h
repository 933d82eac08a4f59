/* Inference with a quarter of the multiplications: Winograd's F(4×4, 3×3), included by stage.c.
 *
 * Patches of 6×6 pixels and filters of 3×3 taps are turned into the values of polynomials at 6×6 points; there the
 * convolution is one product per point and channel, 36 for the 4×4 pixels of a tile instead of 144. Input channels are
 * summed at the points, so that nearly all the work is 36 products of matrices, [tiles][input] × [input][output].
 *
 * In each direction the points are 0, ±P, ±Q and infinity. With 3/4 and 3/2 instead of the usual 1 and 2 the round-off
 * is a quarter, hardly more than that of the direct form. (Infinity or NaN in a pixel spoils whole tiles, though.)
 */
enum {
    POINTS = 36,
    TILES_DOWN = (POOL_HEIGHT + 1) / 2, /* a tile is 2×2 pixels after pooling; the last may hang over the edge */
    TILES_ACROSS = (POOL_WIDTH + 1) / 2,
    TILES = TILES_DOWN * TILES_ACROSS, /* of one image */
    BLOCK = LANES == 8 ? 6 : 12, /* tiles that are computed together; the registers hold two vectors of each */
    BLOCKS = (TOGETHER * TILES + BLOCK - 1) / BLOCK,
    POINT_FILTER = CHANNELS_IN * GROUP * LANES, /* at one point, for one group of outputs */
    POINT_FILTERS = POINTS * CHANNELS_IN * OUT,
    WINOGRAD = CHANNELS_IN >= 16 && CHANNELS_IN <= 256 /* more would not fit the cache */
               && CHANNELS_IN % LANES == 0 && CHANNELS_OUT % LANES == 0
               && 2 * BLOCKS * BLOCK <= TOGETHER * POOL_PIXELS, /* at least halves the multiplications */
};

static const float P = 0.75f, Q = 1.5f;

/* Three taps -> values at the points, divided by what the way back to pixels would have to divide by. */
INLINE void filter_points(const vec *taps, int step, vec *to, int to_step) {
    const float p = 0.5f / (P * P * (P * P - Q * Q)), q = 0.5f / (Q * Q * (Q * Q - P * P));
    const vec first = taps[0], second = taps[step], third = taps[2 * step];
    const vec even_p = (first + third * (P * P)) * p, odd_p = second * (P * p);
    const vec even_q = (first + third * (Q * Q)) * q, odd_q = second * (Q * q);
    to[0] = first * (1 / (P * P * Q * Q));
    to[to_step] = even_p + odd_p;
    to[2 * to_step] = even_p - odd_p;
    to[3 * to_step] = even_q + odd_q;
    to[4 * to_step] = even_q - odd_q;
    to[5 * to_step] = third;
}

/* Six pixels -> values at the points. */
INLINE void patch_points(const vec *d, vec *to) {
    const vec even_p = d[4] - d[2] * (Q * Q), odd_p = (d[3] - d[1] * (Q * Q)) * P;
    const vec even_q = d[4] - d[2] * (P * P), odd_q = (d[3] - d[1] * (P * P)) * Q;
    to[0] = d[4] - d[2] * (P * P + Q * Q) + d[0] * (P * P * Q * Q);
    to[1] = even_p + odd_p;
    to[2] = even_p - odd_p;
    to[3] = even_q + odd_q;
    to[4] = even_q - odd_q;
    to[5] = d[5] - d[3] * (P * P + Q * Q) + d[1] * (P * P * Q * Q);
}

/* Values of the product at the points -> four pixels. */
INLINE void tile_pixels(const vec *m, vec *to) {
    const vec even_p = m[1] + m[2], odd_p = m[1] - m[2], even_q = m[3] + m[4], odd_q = m[3] - m[4];
    to[0] = m[0] + even_p + even_q;
    to[1] = odd_p * P + odd_q * Q;
    to[2] = even_p * (P * P) + even_q * (Q * Q);
    to[3] = m[5] + odd_p * (P * P * P) + odd_q * (Q * Q * Q);
}

/* Weights [output][input][tap] -> filters [group][point][input][output]. */
static void pack_points(const float *weight, float *filters) {
    for (int v = 0; v < OUT_VECTORS; v++)
        for (int c = 0; c < CHANNELS_IN; c++) {
            vec taps[9], rows[18], points[POINTS];
            for (int tap = 0; tap < 9; tap++)
                for (int lane = 0; lane < LANES; lane++)
                    taps[tap][lane] = weight[((v * LANES + lane) * CHANNELS_IN + c) * 9 + tap];
            for (int x = 0; x < 3; x++) filter_points(taps + x, 3, rows + x, 3);
            for (int y = 0; y < 6; y++) filter_points(rows + y * 3, 1, points + y * 6, 1);
            float *to = filters + v / GROUP * POINTS * POINT_FILTER + (c * GROUP + v % GROUP) * LANES;
            for (int i = 0; i < POINTS; i++) store(to + i * POINT_FILTER, points[i]);
        }
}

/* The 6×6 pixels that a tile needs; a copy if some are outside the image, where there are zeros. */
static Source patch_of(const float *image, int top, int left, float *copy) {
    const int bottom = top + 6 < HEIGHT ? top + 6 : HEIGHT, right = left + 6 < WIDTH ? left + 6 : WIDTH;
    const int begin = left < 0 ? 0 : left;
    if (top >= 0 && left >= 0 && bottom == top + 6 && right == left + 6)
        return (Source){image + (top * WIDTH + left) * CHANNELS_IN, WIDTH * CHANNELS_IN, CHANNELS_IN};
    memset(copy, 0, sizeof(float) * 36 * CHANNELS_IN);
    for (int y = top < 0 ? 0 : top; y < bottom; y++)
        memcpy(copy + ((y - top) * 6 + begin - left) * CHANNELS_IN, image + (y * WIDTH + begin) * CHANNELS_IN,
               sizeof(float) * (right - begin) * CHANNELS_IN);
    return (Source){copy, 6 * CHANNELS_IN, CHANNELS_IN};
}

/* A patch -> values[point][tile of the block][input]. */
INLINE void transform_patch(Source patch, float *values) {
    for (int c = 0; c < CHANNELS_IN; c += LANES) {
        vec rows[6][6], column[6], points[6];
        UNROLL for (int x = 0; x < 6; x++) {
            UNROLL for (int y = 0; y < 6; y++) column[y] = load(patch.pixels + y * patch.row + x * CHANNELS_IN + c);
            patch_points(column, points);
            UNROLL for (int y = 0; y < 6; y++) rows[y][x] = points[y];
        }
        UNROLL for (int y = 0; y < 6; y++) {
            patch_points(rows[y], points);
            UNROLL for (int x = 0; x < 6; x++) store(values + (y * 6 + x) * BLOCK * CHANNELS_IN + c, points[x]);
        }
    }
}

/* products[tile][output] = values[tile][input] × filter[input][output], at one point for one group. */
INLINE void multiply(const float *values, const float *filter, vec *products) {
    vec sums[BLOCK * GROUP];
    UNROLL for (int i = 0; i < BLOCK * GROUP; i++) sums[i] = (vec){0};
    for (int c = 0; c < CHANNELS_IN; c++) {
        vec weight[GROUP];
        UNROLL for (int v = 0; v < GROUP; v++) {
            weight[v] = load(filter + (c * GROUP + v) * LANES);
            __builtin_prefetch(filter + POINT_FILTER + (c * GROUP + v) * LANES); /* the next point's */
        }
        UNROLL for (int t = 0; t < BLOCK; t++) {
            UNROLL for (int v = 0; v < GROUP; v++) sums[t * GROUP + v] += weight[v] * values[t * CHANNELS_IN + c];
        }
    }
    UNROLL for (int i = 0; i < BLOCK * GROUP; i++) products[i] = sums[i];
}

/* products[point], of one tile and vector of outputs -> those of its pooled pixels that exist. */
INLINE void finish_tile(const vec *products, vec bias, float *pooled, int rows, int pixels) {
    vec half[4][6], column[6], four[4], row[4][4];
    UNROLL for (int x = 0; x < 6; x++) {
        UNROLL for (int y = 0; y < 6; y++) column[y] = products[(y * 6 + x) * BLOCK * GROUP];
        tile_pixels(column, four);
        UNROLL for (int y = 0; y < 4; y++) half[y][x] = four[y];
    }
    UNROLL for (int y = 0; y < 4; y++) tile_pixels(half[y], row[y]);
    UNROLL for (int y = 0; y < 2; y++) {
        UNROLL for (int x = 0; x < 2; x++) {
            const vec top = larger(row[2 * y][2 * x], row[2 * y][2 * x + 1]);
            const vec bottom = larger(row[2 * y + 1][2 * x], row[2 * y + 1][2 * x + 1]);
            if (y < rows && x < pixels)
                store(pooled + (y * POOL_WIDTH + x) * CHANNELS_OUT, positive(larger(top, bottom) + bias));
        }
    }
}

/* One block of the images' tiles, from number `first` on. What lies behind the last one is rubbish, computed and not
 * looked at: every tile goes through the same code, so that its bits depend on no other. A block's values and products
 * stay in the L2 cache, as do the filters (295 KB for 32 × 64 channels), which every block reads once. */
static void infer_block(const float *images, const float *filters, const float *bias, float *pooled, int64_t first,
                        int64_t last) {
    static _Thread_local ALIGNED float values[POINTS * BLOCK * CHANNELS_IN], copy[36 * CHANNELS_IN];
    static _Thread_local ALIGNED vec products[POINTS * BLOCK * GROUP];
    const int tiles = last - first < BLOCK ? last - first : BLOCK;
    for (int t = 0; t < tiles; t++) {
        const int tile = (first + t) % TILES, y = tile / TILES_ACROSS, x = tile % TILES_ACROSS;
        const float *image = images + (first + t) / TILES * IN_SIZE;
        transform_patch(patch_of(image, 4 * y - PADDING, 4 * x - PADDING, copy), values + t * CHANNELS_IN);
    }
    for (int group = 0; group < OUT_VECTORS / GROUP; group++) {
        for (int i = 0; i < POINTS; i++)
            multiply(values + i * BLOCK * CHANNELS_IN, filters + (group * POINTS + i) * POINT_FILTER,
                     products + i * BLOCK * GROUP);
        for (int t = 0; t < tiles; t++) {
            const int tile = (first + t) % TILES, y = tile / TILES_ACROSS * 2, x = tile % TILES_ACROSS * 2;
            float *to = pooled + (first + t) / TILES * POOL_SIZE + (y * POOL_WIDTH + x) * CHANNELS_OUT;
            for (int v = 0; v < GROUP; v++)
                finish_tile(products + t * GROUP + v, load(bias + (group * GROUP + v) * LANES),
                            to + (group * GROUP + v) * LANES, POOL_HEIGHT - y, POOL_WIDTH - x);
        }
    }
}

static void infer_winograd(int64_t count, const float *images, const float *filters, const float *bias,
                           float *pooled) {
    for (int64_t first = 0; first < count * TILES; first += BLOCK)
        infer_block(images, filters, bias, pooled, first, count * TILES);
}
