//! Parameter structs of templates/probe.cu.
#![allow(unsafe_code)] // says that these structs are laid out as the kernels expect

use super::KernelParams;
use nvkv_spec::abi::DevicePtr;

/// Of the read kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReadParams {
    /// `vectors * 16` bytes.
    pub data: DevicePtr,
    /// One word.
    pub sink: DevicePtr,
    /// 16-byte vectors to read.
    pub vectors: u64,
}

/// Of the transfer kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TransferParams {
    /// `read * 16` bytes.
    pub source: DevicePtr,
    /// `written * 16` bytes.
    pub destination: DevicePtr,
    /// One word.
    pub sink: DevicePtr,
    /// 16-byte vectors to read.
    pub read: u64,
    /// 16-byte vectors to write: those read at the same index, zeros past them.
    pub written: u64,
}

/// Of the fill kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FillParams {
    /// `vectors * 16` bytes.
    pub data: DevicePtr,
    /// 16-byte vectors to write.
    pub vectors: u64,
    /// Index of the first word in the random sequence.
    pub first: u64,
    /// Bits of a word that stay random.
    pub keep: u32,
    /// Added to the word afterwards.
    pub add: u32,
}

// SAFETY: spelled as in probe.cu, 8-byte fields before the 4-byte ones.
unsafe impl KernelParams for ReadParams {}
// SAFETY: as above.
unsafe impl KernelParams for TransferParams {}
// SAFETY: as above.
unsafe impl KernelParams for FillParams {}
