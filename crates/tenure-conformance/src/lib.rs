//! One suite of behaviours that every Tenure store passes
