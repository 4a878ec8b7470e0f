# Finds LibTorch inside the torch wheel and makes the imported targets LibTorch::c10,
# LibTorch::torch_cpu and, where they are there, LibTorch::torch_cuda and LibTorch::torch_python. Looked for in: LIBTORCH_ROOT (the
# folder that holds include/ and lib/), the Python that a Python package is built for, the project's .venv, then the Python on the path.
#
# The wheel's own find_package(Torch) runs nvcc and fails without a CUDA Toolkit; this does not.
# The versions that tests ran with, and those between (docs/python.md): LibTorch's C++ interface changes with any minor version.
set(LibTorch_OLDEST "2.11")
set(LibTorch_NEWEST "2.15")
set(LIBTORCH_ROOT "" CACHE PATH "Folder of LibTorch (holds include/ and lib/); empty: the Python of pip, .venv, then python3")

# Adds the torch of a Python to _candidates, if it has one.
macro(sluice_torch_of_python python)
  execute_process(
    COMMAND "${python}" -c
            "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE _of_python OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(_of_python)
    list(APPEND _candidates "${_of_python}")
  endif()
endmacro()

set(_candidates "")
if(LIBTORCH_ROOT)
  set(_candidates "${LIBTORCH_ROOT}")
else()
  if(SLUICE_BUILD_PYTHON AND Python_EXECUTABLE)  # scikit-build-core names the Python that pip runs in
    sluice_torch_of_python("${Python_EXECUTABLE}")
  endif()
  file(GLOB _of_venv "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
  list(APPEND _candidates ${_of_venv})
  if(NOT _candidates)
    find_program(LibTorch_PYTHON NAMES python3)
    mark_as_advanced(LibTorch_PYTHON)
    if(LibTorch_PYTHON)
      sluice_torch_of_python("${LibTorch_PYTHON}")
    endif()
  endif()
endif()

set(LibTorch_FOUND FALSE)
set(LibTorch_WHY_MISSING "no LibTorch ${LibTorch_OLDEST} to ${LibTorch_NEWEST} in LIBTORCH_ROOT (the folder with include/ and lib/), the Python of the build, .venv or the Python on the path (scripts/setup.sh installs it)")
foreach(_root IN LISTS _candidates)
  set(_header "${_root}/include/torch/headeronly/version.h")
  if(NOT EXISTS "${_root}/lib/libtorch_cpu.so" OR NOT EXISTS "${_header}")
    continue()
  endif()
  file(STRINGS "${_header}" _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" _numbers "${_lines}")
  string(REPLACE ";" "." LibTorch_VERSION "${_numbers}")
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" _minor "${LibTorch_VERSION}")
  if(_minor VERSION_LESS LibTorch_OLDEST OR _minor VERSION_GREATER LibTorch_NEWEST)
    set(LibTorch_WHY_MISSING
        "LibTorch ${LibTorch_VERSION} in ${_root}, needed is ${LibTorch_OLDEST} to ${LibTorch_NEWEST} (run scripts/setup.sh)")
    continue()
  endif()
  set(LibTorch_FOUND TRUE)
  set(LibTorch_ROOT_DIR "${_root}")
  break()
endforeach()

if(LibTorch_FOUND AND NOT TARGET LibTorch::torch_cpu)
  foreach(_library c10 torch_cpu)
    add_library(LibTorch::${_library} SHARED IMPORTED)
    set_target_properties(LibTorch::${_library} PROPERTIES
      IMPORTED_LOCATION "${LibTorch_ROOT_DIR}/lib/lib${_library}.so"
      INTERFACE_INCLUDE_DIRECTORIES
      "${LibTorch_ROOT_DIR}/include;${LibTorch_ROOT_DIR}/include/torch/csrc/api/include")
  endforeach()
  set_property(TARGET LibTorch::torch_cpu PROPERTY INTERFACE_LINK_LIBRARIES LibTorch::c10)
  # The half for Python: tensors as arguments and results.
  if(EXISTS "${LibTorch_ROOT_DIR}/lib/libtorch_python.so")
    add_library(LibTorch::torch_python SHARED IMPORTED)
    set_target_properties(LibTorch::torch_python PROPERTIES
      IMPORTED_LOCATION "${LibTorch_ROOT_DIR}/lib/libtorch_python.so"
      INTERFACE_LINK_LIBRARIES LibTorch::torch_cpu)
  endif()
  # The CUDA half, where the wheel has one.
  if(EXISTS "${LibTorch_ROOT_DIR}/lib/libtorch_cuda.so")
    foreach(_library c10_cuda torch_cuda)
      add_library(LibTorch::${_library} SHARED IMPORTED)
      set_target_properties(LibTorch::${_library} PROPERTIES
        IMPORTED_LOCATION "${LibTorch_ROOT_DIR}/lib/lib${_library}.so")
    endforeach()
    set_property(TARGET LibTorch::torch_cuda PROPERTY INTERFACE_LINK_LIBRARIES
      "LibTorch::c10_cuda;LibTorch::torch_cpu")
  endif()
endif()
