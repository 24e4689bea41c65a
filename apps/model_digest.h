// What a model computes with, in 128 bits: two models whose KV pages must not be mixed up have
// different digests, whatever their files are called.
//
// Reads every byte of the weights, at about 10 GB/s once they are in memory: for what outlives the
// process (the disk tier), not for every start.
#pragma once

#include <string>

#include "load/model_files.h"

namespace apps {

// 32 hexadecimal digits: of every field of the configuration that changes a number, and of names,
// types, shapes and bytes of all tensors.
std::string model_digest(const load::ModelFiles& files);

}  // namespace apps
