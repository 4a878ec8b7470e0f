# Run by ctest: FindLibTorch.cmake asks the Python that a Python package is built for, and names what it finds there.
# Versions that are too old or too new, so that no target is made, which a script may not.
file(REMOVE_RECURSE "${WORK_DIR}")
set(torch "${WORK_DIR}/torch")
file(MAKE_DIRECTORY "${torch}/lib")
file(TOUCH "${torch}/lib/libtorch_cpu.so")
file(WRITE "${WORK_DIR}/python" "#!/bin/sh\necho '${torch}'\n")
file(CHMOD "${WORK_DIR}/python" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)

set(PROJECT_SOURCE_DIR "${WORK_DIR}")  # without a .venv
set(Python_EXECUTABLE "${WORK_DIR}/python")
set(LibTorch_PYTHON "LibTorch_PYTHON-NOTFOUND" CACHE FILEPATH "")
set(ENV{PATH} "${WORK_DIR}/no-programs")
foreach(minor 10 16)
  file(WRITE "${torch}/include/torch/headeronly/version.h"
    "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR ${minor}\n#define TORCH_VERSION_PATCH 1\n")
  foreach(SLUICE_BUILD_PYTHON ON OFF)
    include("${MODULE}")
    string(FIND "${LibTorch_WHY_MISSING}" "LibTorch 2.${minor}.1 in ${torch}, needed is 2.11 to 2.15 " place)
    if(LibTorch_FOUND OR (SLUICE_BUILD_PYTHON AND NOT place EQUAL 0) OR (NOT SLUICE_BUILD_PYTHON AND NOT place EQUAL -1))
      message(FATAL_ERROR "SLUICE_BUILD_PYTHON ${SLUICE_BUILD_PYTHON}: found ${LibTorch_FOUND}, ${LibTorch_WHY_MISSING}")
    endif()
  endforeach()
endforeach()
