"""Errors, units, seeds, secrets, locks, files, launchers and where code comes from: what any other
package may use.
"""
