#include "run/data_check.hpp"

#include <chrono>

#include "sluice/base/log.hpp"
#include "sluice/base/text.hpp"
#include "sluice/base/time/elapsed.hpp"

namespace sluice::train {

DataCheck::DataCheck(const Data& data) : worker_("sluice-data") {
  files_.push_back({data.train.get(), "checksum of the training data"});
  if (data.separate_eval)
    files_.push_back({data.separate_eval.get(), "checksum of the held-out data"});
  reading_ = worker_.begin([this] {
    for (File& file : files_) read(file);
  });
}

DataCheck::~DataCheck() {
  stop_ = true;
  try {
    reading_.finish();
  } catch (const std::exception&) {
    // The run ends with an error already. Often it is this one: a step drew the token as well.
  }
}

void DataCheck::read(File& file) {
  const auto begin = std::chrono::steady_clock::now();
  file.checksum = file.data->checksum(stop_).value_or("");
  file.seconds = seconds_since(begin);
}

models::RunSettings DataCheck::finish() {
  reading_.finish();
  models::RunSettings checksums;
  for (const File& file : files_) {
    log(LogLevel::info, file.data->name() + ": all " + format_count(file.data->size_bytes()) +
                            " bytes checked in " + format_number("%.1f", file.seconds) +
                            " s, checksum " + file.checksum);
    checksums[file.setting] = file.checksum;
  }
  return checksums;
}

}  // namespace sluice::train
