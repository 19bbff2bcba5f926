//! The address of an interface that another host can connect to.
//!
//! Kernel interface: getifaddrs(3).

use std::{
    ffi::CStr,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ptr,
};

/// The first address of the interface, an IPv4 one if there is any; `None` if there is none but link-local ones.
///
/// # Errors
///
/// The kernel's error.
pub(crate) fn of_interface(name: &str) -> io::Result<Option<IpAddr>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: the pointer may be written to.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut at = list;
    // SAFETY: each item of the list is null or valid until the list is freed, below.
    while let Some(item) = unsafe { at.as_ref() } {
        // SAFETY: names in the list end with a zero, and live as long as it.
        let its = unsafe { CStr::from_ptr(item.ifa_name) };
        if its.to_bytes() == name.as_bytes() {
            // SAFETY: an item's address is null or valid as long as the list.
            found.extend(unsafe { address(item.ifa_addr) });
        }
        at = item.ifa_next;
    }
    // SAFETY: the list came from getifaddrs, and nothing of it is used any more.
    unsafe { libc::freeifaddrs(list) };
    found.sort_by_key(IpAddr::is_ipv6);
    Ok(found.into_iter().next())
}

/// The address in a structure of any family; `None` if it is null, link-local or no IP address.
///
/// # Safety
///
/// The pointer must be null, or point to a valid socket address of the family that it says.
unsafe fn address(any: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as the caller promises.
    let family = i32::from(unsafe { any.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: addresses of this family have this layout.
            let four = unsafe { any.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from_bits(u32::from_be(four.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: addresses of this family have this layout.
            let six = unsafe { any.cast::<libc::sockaddr_in6>().read_unaligned() };
            let six = Ipv6Addr::from(six.sin6_addr.s6_addr);
            (!six.is_unicast_link_local()).then_some(six.into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_its_address_and_what_is_not_there_none() {
        assert_eq!(of_interface("lo").unwrap(), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(of_interface("no-such-device").unwrap(), None);
    }
}
