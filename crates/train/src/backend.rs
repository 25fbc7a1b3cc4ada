//! Where tensors are computed.

use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

use crate::ConfigError;

/// A burn backend; each is a cargo feature of the same name.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Display, EnumString, IntoStaticStr, VariantArray, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Backend {
    /// burn's own CPU backend, the faster one.
    Flex,
    /// The CPU backend on the `ndarray` crate.
    Ndarray,
    /// Any GPU, through WebGPU.
    Wgpu,
}

impl Backend {
    /// Checks that this program was built with the backend.
    ///
    /// # Errors
    /// A sentence that names the cargo feature.
    pub fn require(self) -> Result<(), ConfigError> {
        let built_in = match self {
            Backend::Flex => cfg!(feature = "flex"),
            Backend::Ndarray => cfg!(feature = "ndarray"),
            Backend::Wgpu => cfg!(feature = "wgpu"),
        };
        if built_in {
            return Ok(());
        }
        Err(ConfigError(format!(
            "backend `{self}` is not built in: build with `--features {self}`, as in \
             `cargo run --package ablate --features {self} -- ...`"
        )))
    }

    /// Its name, with the ways of computing on a GPU that this program was built with: `wgpu with fusion`.
    pub fn with_features(self) -> String {
        let ways = [
            ("autotune", cfg!(feature = "autotune")),
            ("fusion", cfg!(feature = "fusion")),
            ("vulkan", cfg!(feature = "vulkan")),
        ];
        let ways = ways.into_iter().filter(|(_, is_built_in)| *is_built_in && !self.is_cpu()).map(|(way, _)| way);
        match ways.collect::<Vec<_>>().join(" and ") {
            none if none.is_empty() => self.to_string(),
            ways => format!("{self} with {ways}"),
        }
    }

    /// Whether it computes on the CPU, where results are repeated bit for bit.
    pub fn is_cpu(self) -> bool {
        match self {
            Backend::Flex | Backend::Ndarray => true,
            Backend::Wgpu => false,
        }
    }

    /// The device of this backend.
    ///
    /// # Errors
    /// As [`Backend::require`].
    pub fn device(self) -> Result<Device, ConfigError> {
        self.require()?;
        Ok(match self {
            #[cfg(feature = "flex")]
            Backend::Flex => Device::flex(),
            #[cfg(feature = "ndarray")]
            #[allow(deprecated, reason = "complete in burn 0.22, which is pinned")]
            Backend::Ndarray => Device::ndarray(),
            #[cfg(feature = "wgpu")]
            Backend::Wgpu if wgpu_devices().next().is_none() => {
                return Err(ConfigError(
                    "backend `wgpu`: no device can be found here; without a GPU, Mesa's software Vulkan is one \
                     (`ablate devices`)"
                        .into(),
                ));
            }
            #[cfg(feature = "wgpu")]
            Backend::Wgpu => Device::wgpu(Default::default()),
            #[allow(unreachable_patterns, reason = "which patterns remain depends on the features")]
            absent => unreachable!("{absent} passed `require`"),
        })
    }

    /// The names of the devices that are there for this backend; the first is used.
    ///
    /// # Errors
    /// As [`Backend::require`].
    pub fn device_names(self) -> Result<Vec<String>, ConfigError> {
        self.require()?;
        Ok(match self {
            #[cfg(feature = "wgpu")]
            Backend::Wgpu => {
                wgpu_devices().map(|device| device.identity().map_or("unnamed".into(), |known| known.name)).collect()
            }
            _ => vec!["the CPU".into()],
        })
    }

    /// The name of [`Backend::device`].
    ///
    /// # Errors
    /// As there.
    pub fn device_name(self) -> Result<String, ConfigError> {
        let device = self.device()?;
        #[cfg(feature = "wgpu")]
        if let Some(known) = device.identity() {
            return Ok(known.name);
        }
        drop(device);
        Ok(if self.is_cpu() { "the CPU".into() } else { "a device without a name".into() })
    }
}

#[cfg(feature = "wgpu")]
fn wgpu_devices() -> impl Iterator<Item = Device> {
    Device::enumerate(burn::tensor::DeviceType::Wgpu).into_iter()
}
