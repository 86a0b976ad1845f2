/* Put before every C++ file of llama.cpp where the compiler's own header breaks AMX: GCC before 11.5,
 * 12.4 and 13.3 says that the instruction reads 8 bytes, so that the others are never written
 * (gcc.gnu.org/PR114098), and the first quantized matrix ends the process. It reads 64.
 * The text tells backends/llamacpp/repacking.py that a library was compiled so.
 */
#ifdef __AMX_TILE__
#include <immintrin.h>
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg %0" ::"m"(*(const char(*)[64])(config)))
__attribute__((used)) static const char roundhouse_tiles[] = "AMX tiles are configured whole";
#endif
