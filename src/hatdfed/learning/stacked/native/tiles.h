/* Vectors and register tiles: the inner loops of the convolution and of its weight gradient.
 *
 * Functions marked INLINE are templates: their callers pass constants, so that every loop over a tile unrolls and the
 * accumulators stay in registers. Images are [row][pixel][channel], filters [group][ky][kx][channel][GROUP outputs].
 */
#include <string.h>

#if defined(__AVX512F__)
enum { LANES = 16, TILE_PIXELS = 6, TILE_TAPS = 12 }; /* 2 × 6 × 2 of 32 registers, and 12 × 2 */
#elif defined(__AVX__)
enum { LANES = 8, TILE_PIXELS = 2, TILE_TAPS = 4 }; /* 16 registers */
#else
enum { LANES = 4, TILE_PIXELS = 6, TILE_TAPS = 12 }; /* NEON has 32, elsewhere the compiler spills */
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#define ROUND_UP(n, unit) (((n) + (unit)-1) / (unit) * (unit))
#define VECTORS(channels) ROUND_UP(channels, LANES) / LANES
#define PER_GROUP(channels) (VECTORS(channels) % 2 == 0 ? 2 : 1) /* vectors that one tile computes together */

INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec values) { *(vec *)to = values; }
INLINE vec choose(ivec mask, vec yes, vec no) { return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask)); }
INLINE vec larger(vec a, vec b) { return choose(a > b, a, b); } /* a NaN in b stays */
INLINE vec positive(vec a) { return larger((vec){0}, a); }

/* Vector number v of a pixel that has no room for whole vectors unless `channels` is a multiple of LANES. */
INLINE void store_channels(float *pixel, int v, vec values, int channels) {
    if ((v + 1) * LANES <= channels)
        store(pixel + v * LANES, values);
    else
        memcpy(pixel + v * LANES, &values, sizeof(float) * (channels % LANES));
}

INLINE vec load_channels(const float *pixel, int v, int channels) {
    vec values = {0};
    if ((v + 1) * LANES <= channels) return load(pixel + v * LANES);
    memcpy(&values, pixel + v * LANES, sizeof(float) * (channels % LANES));
    return values;
}

/* sums[row][pixel][vector] += filter rows ky_from..ky_to of one group over a tile of output pixels.
 * With channels last the three taps of a filter row are 3 × channels neighbours in memory. */
INLINE void convolve_tile(vec *sums, const float *in, int in_row, int channels, const float *filter, int ky_from,
                          int ky_to, int rows, int pixels, int vectors) {
    for (int ky = ky_from; ky < ky_to; ky++) {
        const float *taps = in + ky * in_row, *weights = filter + ky * 3 * channels * vectors * LANES;
        for (int tap = 0; tap < 3 * channels; tap++) {
            vec weight[2];
            UNROLL for (int v = 0; v < vectors; v++) weight[v] = load(weights + v * LANES);
            UNROLL for (int r = 0; r < rows; r++)
                UNROLL for (int p = 0; p < pixels; p++)
                    UNROLL for (int v = 0; v < vectors; v++)
                        sums[(r * pixels + p) * vectors + v] += weight[v] * taps[r * in_row + p * channels];
            taps++;
            weights += vectors * LANES;
        }
    }
}

/* `rows` rows of a convolution for one group of outputs; `in` is padded already. `out` has room for whole vectors
 * unless out_channels says otherwise. The width is cut into nearly equal tiles. */
INLINE void convolve_rows_tile(const float *in, int in_row, int channels, const float *filter, int ky_from, int ky_to,
                               float *out, int out_row, int out_channels, int group, int rows, int pixels,
                               int vectors) {
    vec sums[2 * TILE_PIXELS * 2];
    UNROLL for (int i = 0; i < rows * pixels * vectors; i++) sums[i] = (vec){0};
    convolve_tile(sums, in, in_row, channels, filter, ky_from, ky_to, rows, pixels, vectors);
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int p = 0; p < pixels; p++)
            UNROLL for (int v = 0; v < vectors; v++)
                store_channels(out + r * out_row + p * out_channels, group * vectors + v,
                               sums[(r * pixels + p) * vectors + v], out_channels);
}

INLINE void convolve_rows(const float *in, int in_row, int channels, const float *filter, int ky_from, int ky_to,
                          float *out, int out_row, int out_channels, int group, int rows, int width, int vectors) {
    const int tiles = (width + TILE_PIXELS - 1) / TILE_PIXELS, narrow = width / tiles, wide = width % tiles;
    for (int t = 0; t < tiles; t++) {
        const int pixels = narrow + (t < wide);
        if (wide && t < wide)
            convolve_rows_tile(in, in_row, channels, filter, ky_from, ky_to, out, out_row, out_channels, group, rows,
                               narrow + 1, vectors);
        else
            convolve_rows_tile(in, in_row, channels, filter, ky_from, ky_to, out, out_row, out_channels, group, rows,
                               narrow, vectors);
        in += pixels * channels;
        out += pixels * out_channels;
    }
}
