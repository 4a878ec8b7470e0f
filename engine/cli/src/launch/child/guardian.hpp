#pragma once
// A process that outlives this one for a moment: when this process is killed, it kills the groups
// of processes that this one had started. PR_SET_PDEATHSIG reaches only the first process of a
// group. Confined to thread: main.

#include <sys/types.h>

#include "sluice/base/fd.hpp"

namespace sluice::cli {

class Guardian {
 public:
  // Starts the process. Throws IoError when the system starts none.
  Guardian();
  // Ends the process, which kills nothing: all groups must have ended.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  // From now on the group dies with this process; after forget(), it does not.
  void watch(pid_t group);
  void forget(pid_t group);

 private:
  void say(pid_t number);

  UniqueFd pipe_;
  pid_t process_ = -1;
};

}  // namespace sluice::cli
