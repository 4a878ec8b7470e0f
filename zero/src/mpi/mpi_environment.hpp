#pragma once
// Messages between hosts: how large they are, and the settings of Open MPI that fit them. Not
// installed.
//
// Thread-compatible: keep_directions_apart() before MPI and other threads start.

#include <cstddef>

namespace sluice::zero {

// Bytes of a message between hosts: 2 ms of a 1 Gbit/s link, 20 us of 100 Gbit/s.
inline constexpr std::size_t kMessageBytesBetweenHosts = std::size_t{256} << 10U;

// Whether the launcher's variables say that some ranks run on other hosts. Throws InvalidArgument
// when the variables contradict each other.
bool ranks_on_several_hosts();

// Lets Open MPI send such messages over TCP without asking the receiver first. The answer would
// wait behind the data of the other direction, and the two directions would take turns. Changes
// variables of this process, not those that the user has set.
void keep_directions_apart();

}  // namespace sluice::zero
