/* Put before every C++ file of llama.cpp where the processor has AVX-512 (scripts/install). */

/* Flash attention goes through the halves of a head's keys in steps of 64 and through those of its
 * values in steps of 128, and computes what is left one by one: a head of 64 values has nothing but
 * left-overs, one of 32 is computed five times as slowly as on AVX2, whose steps are of 32. So are
 * these: sums in two registers of 16 floats, as before, but two instead of four.
 */
#if defined(__AVX512F__) && defined(__has_include)
#if __has_include("simd-mappings.h") /* in ggml-cpu alone */
#include "simd-mappings.h"
#if GGML_F16_DOT_EPR == 16
#undef GGML_F16_STEP
#undef GGML_F16_DOT_STEP
#undef GGML_F16_DOT_ARR
#undef GGML_F16_DOT_VEC_REDUCE
#define GGML_F16_STEP 32
#define GGML_F16_DOT_STEP 32
#define GGML_F16_DOT_ARR 2
#define GGML_F16_DOT_VEC_REDUCE(sum, x) sum = (ggml_float)_mm512_reduce_add_ps(_mm512_add_ps(x[0], x[1]))
#endif
#endif
#endif

/* GCC before 11.5, 12.4 and 13.3 says that AMX's tile configuration is read from 8 bytes, so that the
 * others are never written (gcc.gnu.org/PR114098), and the first quantized matrix ends the process.
 * It is read from 64. The text tells backends/engines/llamacpp/cpu_layouts.py that a library was compiled so.
 */
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg %0" ::"m"(*(const char(*)[64])(config)))
__attribute__((used)) static const char roundhouse_tiles[] = "AMX tiles are configured whole";
#endif
