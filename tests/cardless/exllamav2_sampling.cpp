// exllamav2's own sampler and string matcher as a Python module. They run on the CPU everywhere; it is only
// that the package compiles them together with its kernels. `compiling.py` includes its sources and four
// headers of CUDA's that are empty here.

#include <pybind11/pybind11.h>

#include "cpp/profiling.cpp"
#include "cpp/sampling.cpp"
#include "cpp/sampling_avx2.cpp"
#include "cpp/generator.cpp"
#include "ext_sampling.cpp"

PYBIND11_MODULE(exllamav2_sampling, module)
{
    module.def("apply_rep_penalty", &apply_rep_penalty);
    module.def("sample_basic", &sample_basic);
    module.def("logit_filter_exclusive", &logit_filter_exclusive);
    module.def("fast_fill_cpu_ones_bool", &fast_fill_cpu_ones_bool);
    module.def("fast_fadd_cpu", &fast_fadd_cpu);
    module.def("fast_copy_cpu", &fast_copy_cpu);
    module.def("partial_strings_match", &partial_strings_match);
}
