/* Vectors and register tiles: the inner loops of the convolution and of its weight gradient.
 *
 * Functions marked INLINE are templates: their callers pass constants, so that every loop over a tile unrolls and the
 * sums stay in registers. Images are [row][pixel][channel], filters [group][ky][kx][channel][vectors × LANES outputs].
 */
#include <string.h>

#if defined(__AVX512F__)
enum { LANES = 16, TILE_PIXELS = 6, TILE_TAPS = 12 }; /* 2 × 6 × 2 of 32 registers, and 12 × 2 */
#elif defined(__AVX__)
enum { LANES = 8, TILE_PIXELS = 2, TILE_TAPS = 4 }; /* 16 registers */
#else
enum { LANES = 4, TILE_PIXELS = 6, TILE_TAPS = 12 }; /* NEON has 32; elsewhere the compiler spills */
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define ALIGNED _Alignas(64) /* vectors that straddle cache lines cost twice */
#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#define VECTORS(channels) (((channels) + LANES - 1) / LANES)
#define GROUPED(channels) (VECTORS(channels) % 2 ? 1 : 2) /* vectors that one tile computes together */

INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec values) { *(vec *)to = values; }
INLINE vec choose(ivec mask, vec yes, vec no) { return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask)); }
INLINE vec larger(vec a, vec b) { return choose(a > b, a, b); } /* a NaN in b stays */
INLINE vec positive(vec a) { return larger((vec){0}, a); }

/* Vector number v of a pixel of `channels`, which need not be a multiple of LANES. */
INLINE vec load_channels(const float *pixel, int v, int channels) {
    vec values = {0};
    if ((v + 1) * LANES <= channels) return load(pixel + v * LANES);
    memcpy(&values, pixel + v * LANES, sizeof(float) * (channels % LANES));
    return values;
}

INLINE void store_channels(float *pixel, int v, vec values, int channels) {
    if ((v + 1) * LANES <= channels)
        store(pixel + v * LANES, values);
    else
        memcpy(pixel + v * LANES, &values, sizeof(float) * (channels % LANES));
}

/* An image that a convolution reads; it has its border of zeros already. */
typedef struct {
    const float *pixels;
    int row, channels; /* row: floats from one row to the next */
} Source;

/* Where a convolution of `vectors` per group writes; `channels` of each pixel. */
typedef struct {
    float *pixels;
    int row, channels, vectors;
} Target;

/* sums[row][pixel][vector] += filter rows ky_from..ky_to of one group over a tile of output pixels.
 * With channels last the three taps of a filter row are 3 × channels neighbours in memory. */
INLINE void convolve_tile(vec *sums, Source in, const float *filter, int ky_from, int ky_to, int rows, int pixels,
                          int vectors) {
    for (int ky = ky_from; ky < ky_to; ky++) {
        const float *taps = in.pixels + ky * in.row, *weights = filter + ky * 3 * in.channels * vectors * LANES;
        for (int tap = 0; tap < 3 * in.channels; tap++) {
            vec weight[2];
            UNROLL for (int v = 0; v < vectors; v++) weight[v] = load(weights + v * LANES);
            UNROLL for (int r = 0; r < rows; r++) {
                UNROLL for (int p = 0; p < pixels; p++) {
                    UNROLL for (int v = 0; v < vectors; v++)
                        sums[(r * pixels + p) * vectors + v] += weight[v] * taps[r * in.row + p * in.channels];
                }
            }
            taps++;
            weights += vectors * LANES;
        }
    }
}

INLINE void convolve_and_store(Source in, const float *filter, int ky_from, int ky_to, Target out, int group, int rows,
                               int pixels) {
    vec sums[2 * TILE_PIXELS * 2];
    UNROLL for (int i = 0; i < rows * pixels * out.vectors; i++) sums[i] = (vec){0};
    convolve_tile(sums, in, filter, ky_from, ky_to, rows, pixels, out.vectors);
    UNROLL for (int r = 0; r < rows; r++) {
        UNROLL for (int p = 0; p < pixels; p++) {
            UNROLL for (int v = 0; v < out.vectors; v++)
                store_channels(out.pixels + r * out.row + p * out.channels, group * out.vectors + v,
                               sums[(r * pixels + p) * out.vectors + v], out.channels);
        }
    }
}

/* One or two rows of a convolution for one group of outputs, cut into nearly equal tiles. */
INLINE void convolve_rows(Source in, const float *filter, int ky_from, int ky_to, Target out, int group, int rows,
                          int width) {
    const int tiles = (width + TILE_PIXELS - 1) / TILE_PIXELS, narrow = width / tiles, wider = width % tiles;
    for (int t = 0; t < tiles; t++) {
        const int pixels = narrow + (t < wider);
        if (t < wider)
            convolve_and_store(in, filter, ky_from, ky_to, out, group, rows, narrow + 1);
        else
            convolve_and_store(in, filter, ky_from, ky_to, out, group, rows, narrow);
        in.pixels += pixels * in.channels;
        out.pixels += pixels * out.channels;
    }
}

/* sums[tap][output] += input at that tap × gradient, over all pixels of an image, for `taps` neighbouring taps. */
INLINE void correlate_tile(Source in, Source gradient, int height, int width, float *sums, int taps, int vectors) {
    vec part[TILE_TAPS * 2];
    UNROLL for (int t = 0; t < taps; t++) {
        UNROLL for (int v = 0; v < vectors; v++)
            part[t * vectors + v] = load(sums + t * gradient.channels + v * LANES);
    }
    for (int y = 0; y < height; y++) {
        const float *pixel = in.pixels + y * in.row, *slope = gradient.pixels + y * gradient.row;
        for (int x = 0; x < width; x++) {
            vec slopes[2];
            UNROLL for (int v = 0; v < vectors; v++) slopes[v] = load(slope + v * LANES);
            UNROLL for (int t = 0; t < taps; t++) { /* a tile may span the filter's rows when there is one channel */
                const float value = pixel[t / (3 * in.channels) * in.row + t % (3 * in.channels)];
                UNROLL for (int v = 0; v < vectors; v++) part[t * vectors + v] += slopes[v] * value;
            }
            pixel += in.channels;
            slope += gradient.channels;
        }
    }
    UNROLL for (int t = 0; t < taps; t++) {
        UNROLL for (int v = 0; v < vectors; v++)
            store(sums + t * gradient.channels + v * LANES, part[t * vectors + v]);
    }
}
