// Python module fastverify.comm._shm.
#include <nanobind/nanobind.h>

NB_MODULE(_shm, m) { m.def("abi_version", [] { return 1; }); }
