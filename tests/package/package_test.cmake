# Run by ctest: installs BUILD_DIR below WORK_DIR, then configures, builds and runs CONSUMER_DIR against it.
function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${what} failed (${result}):\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
set(prefix "${WORK_DIR}/prefix")
set(build "${WORK_DIR}/build")

# Only the library components: the rest is not needed to use them, and need not be built for this test.
foreach(component base nvme cpu_adam)
  run("installing ${component}"
    "${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${prefix}" --component ${component})
endforeach()

run("configuring the consumer"
  "${CMAKE_COMMAND}" -S "${CONSUMER_DIR}" -B "${build}" -G "${GENERATOR}"
  "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_PREFIX_PATH=${prefix}" "-DEXPECTED_VERSION=${VERSION}")
run("building the consumer" "${CMAKE_COMMAND}" --build "${build}")
run("running the consumer" "${build}/consumer" "${WORK_DIR}/swap")
if(NOT output MATCHES "a step on bytes that were on disk: ok")
  message(FATAL_ERROR "the consumer printed:\n${output}")
endif()

# What the package does not have is said by find_package, not at link time.
execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${CONSUMER_DIR}" -B "${build}-absent" -G "${GENERATOR}"
          "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_PREFIX_PATH=${prefix}" -DABSENT_COMPONENT=teleport
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0 OR NOT output MATCHES "teleport")
  message(FATAL_ERROR "asking for a component that does not exist gave (${result}):\n${output}")
endif()

foreach(required "" REQUIRED)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${CONSUMER_DIR}/optional" -B "${build}-without-hwy${required}" -G "${GENERATOR}"
            "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_PREFIX_PATH=${prefix}" -Dhwy_LIBRARY= -DREQUIRED=${required}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(required)
    string(REGEX REPLACE "[ \n]+" " " output "${output}")
    if(result EQUAL 0 OR NOT output MATCHES "component cpu_adam needs hwy, which was not found")
      message(FATAL_ERROR "a required component without its library gave (${result}):\n${output}")
    endif()
  elseif(NOT result EQUAL 0 OR NOT output MATCHES "sluice: found 0, cpu_adam 0, nvme 1")
    message(FATAL_ERROR "an optional component without its library gave (${result}):\n${output}")
  endif()
endforeach()
run("asking for no component"
  "${CMAKE_COMMAND}" -S "${CONSUMER_DIR}/optional" -B "${build}-all" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
  "-DCMAKE_PREFIX_PATH=${prefix}" -DALL=1)
if(NOT output MATCHES "sluice: found 1, cpu_adam 1, nvme 1")
  message(FATAL_ERROR "asking for no component printed:\n${output}")
endif()

# Ranks alone: their library for MPI is found beside the others.
foreach(component offload zero)
  run("installing ${component}"
    "${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${prefix}" --component ${component})
endforeach()
run("configuring the ranks"
  "${CMAKE_COMMAND}" -S "${CONSUMER_DIR}/ranks" -B "${build}-ranks" -G "${GENERATOR}"
  "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_PREFIX_PATH=${prefix}")
run("building the ranks" "${CMAKE_COMMAND}" --build "${build}-ranks")
run("running the ranks" "${build}-ranks/ranks")
if(NOT output MATCHES "threads: 3, MPI: (1|this build has no MPI)")
  message(FATAL_ERROR "the ranks printed:\n${output}")
endif()

# The installed training library finds LibTorch where it was built against it.
if(HAVE_TORCH)
  run("installing train" "${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${prefix}" --component train)
  file(GLOB_RECURSE library "${prefix}/lib*/libsluice_train.so")
  run("listing what ${library} needs" ldd "${library}")
  if(NOT output MATCHES "libtorch_cpu" OR output MATCHES "not found")
    message(FATAL_ERROR "${library} does not find what it needs:\n${output}")
  endif()
endif()

# A loop of one's own, built against the installed training library.
if(HAVE_TORCH)
  run("configuring the loop"
    "${CMAKE_COMMAND}" -S "${CONSUMER_DIR}/own_loop" -B "${build}-loop" -G "${GENERATOR}"
    "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_PREFIX_PATH=${prefix}" "-DLIBTORCH_ROOT=${LIBTORCH_ROOT}"
    "-DSOURCE=${SOURCE_DIR}/examples/own_loop.cpp")
  run("building the loop" "${CMAKE_COMMAND}" --build "${build}-loop")
  run("running the loop" "${build}-loop/own_loop" "${SOURCE_DIR}/examples/own_loop.json" 20 "${WORK_DIR}/embedding.pt")
  if(NOT output MATCHES "evaluated: " OR NOT EXISTS "${WORK_DIR}/embedding.pt")
    message(FATAL_ERROR "the loop printed:\n${output}")
  endif()
endif()

# Without the libraries that can be left out the project configures, and says what that means.
run("configuring without optional libraries"
  "${CMAKE_COMMAND}" -S "${SOURCE_DIR}" -B "${WORK_DIR}/bare" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}"
  -DSLUICE_WITH_TORCH=off -DSLUICE_BUILD_TESTS=OFF -DSLUICE_BUILD_BENCH=OFF
  -Dliburing_LIBRARY= -Dlibaio_LIBRARY= -Dhwloc_LIBRARY=)
foreach(part "uring +off  liburing was not found .*, libaio or threads do the I/O" "hwloc +off  hwloc was not found .*, doctor shows less")
  if(NOT output MATCHES "${part}")
    message(FATAL_ERROR "configuring without optional libraries printed:\n${output}")
  endif()
endforeach()
