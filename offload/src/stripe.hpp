#pragma once
// Stripe: the directories that a store's files are striped over, and the label in each of them that
// says so: DIR/stripe.json, with all directories in order, their weights, and which of them this
// one is. A store in one directory has no label. The manifest names the store by the same number as
// its labels.
//
// Thread-safe: free functions without state.

#include <cstdint>
#include <string>
#include <vector>

#include "manifest.hpp"
#include "sluice/nvme/striped_file.hpp"
#include "sluice/offload/swap_place.hpp"

namespace sluice::offload {

struct Stripe {
  std::string store_id;  // empty: in one directory
  std::vector<std::string> directories;
  nvme::StripeLayout layout;

  const std::string& first() const { return directories.front(); }
};

// Of a new store, with a number of its own. Throws InvalidArgument when a directory is named twice
// or the weights are not as many.
Stripe new_stripe(const SwapPlace& place);

// What the label in `directory` says; without one: it alone. Throws StorageError when the label
// cannot be used, or says that this is a further directory of a store, naming the first.
Stripe stripe_in(const std::string& directory);

// Of what `manifest` says is committed in `directory`, or at `place`, whose directories count,
// since drives may be mounted elsewhere by now. Throws StorageError when the labels are not those
// of this store, in this order.
Stripe stripe_of_committed(const std::string& directory, const Manifest& manifest);
Stripe stripe_of_committed(const SwapPlace& place, const Manifest& manifest);

// Throws StorageError when `directory` is a further one of a store that is committed, or whose
// first directory is not there to tell.
void check_is_nobodys_part(const std::string& directory, const std::string& new_first);

// Whether the directory of this part is there and has the label that says so.
bool has_part(const Stripe& stripe, std::size_t part);

// Where the store lies whose further directory this is; empty: it is none.
std::string first_of_part(const std::string& directory);

// Writes the labels, none for a store in one directory. Throws IoError.
void write_labels(const Stripe& stripe);

}  // namespace sluice::offload
