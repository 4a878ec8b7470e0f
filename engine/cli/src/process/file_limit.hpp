#pragma once
// The limit of open files.

namespace sluice::cli {

// Raises the soft limit (RLIMIT_NOFILE) to the hard one: a run keeps all its data files open, and
// the usual soft limit of 1,024 is for programs that call select(). Leaves it where that fails.
void raise_file_limit();

}  // namespace sluice::cli
