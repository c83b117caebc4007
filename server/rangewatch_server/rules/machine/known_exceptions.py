"""Exceptions of torch that are met most often in a training loop, and what helps against each: by its text alone, which
says what is wrong in terms of torch's own operations, and seldom what to change in the loop.
"""

from __future__ import annotations

import re

from rangewatch_server.rules.rule import Remedy


def known_remedy(text: str) -> Remedy | None:
    """Of an exception's type and message; None where it is none of these. Code is shown where it needs no name of the
    user's own."""
    return next((remedy for pattern, remedy in _KNOWN if pattern.search(text)), None)


def _known(pattern: str, advice: str, code: str = "") -> tuple[re.Pattern[str], Remedy]:
    return re.compile(pattern), Remedy(advice, code, "the text of the exception")


_KNOWN = (
    _known(
        r"Target -?\d+ is out of bounds|Assertion `t >= 0 && t < n_classes|cur_target >= 0 && cur_target < n_classes",
        "Look at the labels: classes are counted from 0, so that the largest label must be one below the number of "
        "outputs of the last layer. Subtract 1 from labels that begin with 1, give the last layer as many outputs as "
        "there are classes, and mark what is to be left out with ignore_index.",
    ),
    _known(
        r"index out of range in self|Assertion `srcIndex < srcSelectDimSize|vectorized_gather_kernel.*index out of",
        "Look at the ids that the embedding is given: the largest must be below its number of rows. A tokenizer that "
        "has got more tokens since, ids of another vocabulary, or positions beyond the longest that the model knows "
        "do that.",
    ),
    _known(
        r"backward through the graph a second time",
        "Look for what is kept from one step to the next with its graph: a hidden state of a recurrent layer, a loss "
        "that is summed up, a tensor that is computed once before the loop. Detach the state before the next step, of "
        "an LSTM both tensors; add up loss.item(), and compute the rest anew. retain_graph=True only hides it, and "
        "each step takes longer.",
    ),
    _known(
        r"modified by an inplace operation",
        "Look for what changes a tensor after the forward has read it and before the backward: x += y, "
        "nn.ReLU(inplace=True), an assignment to a slice, or an optimizer.step() between the forward and the backward "
        "of another loss. Write x = x + y, clone it, or do the backward first. Anomaly detection shows the line.",
        "torch.autograd.set_detect_anomaly(True)  # for some steps: it is slow",
    ),
    _known(
        r"does not require grad and does not have a grad_fn",
        "Look for what cuts the loss off from the parameters: a forward under no_grad or inference_mode, detach(), "
        ".data, .item() or numpy, an argmax in the loss, or parameters that are all frozen.",
        "print(loss.requires_grad, any(each.requires_grad for each in model.parameters()))",
    ),
    _known(
        r"grad can be implicitly created only for scalar outputs",
        "Make one number of the loss before its backward: its mean over the batch, or remove reduction='none'.",
        "loss = loss.mean()  # before loss.backward()",
    ),
    _known(
        r"mat1 and mat2 shapes cannot be multiplied|size mismatch, m1",
        "Compare the last dimension of what the layer is given with its in_features: after convolutions that is the "
        "channels times height times width of the flattened picture, which changes with the size of the pictures.",
    ),
    _known(
        r"mat1 and mat2 must have the same dtype|expected (m1 and m2|scalar type|mat1)|Input type .* and (weight|bias) "
        r"type .* should be the same|to have the same dtype|(must|should) have the same dtype|"
        r"expected (scalar type \w+ but found|target dtype to be)|"
        r"result type \w+ can't be cast to the desired output type",
        "Give what is computed together one dtype: run the forward under torch.autocast where the model is to be read "
        "in half precision, or convert the batch to the dtype, and the device, of the model's weights. Class labels "
        "are long, and targets of a regression or of BCE are float.",
        "print(next(model.parameters()).dtype, next(model.parameters()).device)  # beside those of the batch",
    ),
    _known(
        r"Expected all tensors to be on the same device",
        "Move the batch, and every tensor that the forward makes, to the device of the model: buffers by "
        "register_buffer, so that model.to() moves them, and new tensors with device=x.device.",
    ),
    _known(
        r"Expected to have finished reduction in the prior iteration",
        "Some parameters had no part in the loss on this rank, and DistributedDataParallel waits for their gradients: "
        "use them in every forward, freeze them, or pass find_unused_parameters=True.",
    ),
    _known(
        r"Error\(s\) in loading state_dict|Missing key\(s\) in state_dict|Unexpected key\(s\) in state_dict",
        "Compare the names in the checkpoint with the model's: those of a wrapped model begin with 'module.' or "
        "'_orig_mod.', and a head of another size has to be left out. strict=False alone leaves what is missing as it "
        "was initialised.",
    ),
    _known(
        r"Attempting to unscale FP16 gradients",
        "Keep the weights in float32 and run the forward under torch.autocast: a GradScaler does not unscale gradients "
        "that are float16 themselves, as those of model.half().",
    ),
    _known(
        r"No inf checks were recorded for this optimizer",
        "Look why no parameter of this optimizer had a gradient when scaler.step was called: backward is called on "
        "scaler.scale(loss), and of the parameters that this optimizer was made of.",
        "print([group['params'][0].grad for group in optimizer.param_groups])",
    ),
    _known(
        r"unscale_\(\) has already been called on this optimizer|unscale_\(\) is being called after step",
        "Call scaler.unscale_ once for each optimizer and update, and scaler.update() at the end of each step: of "
        "gradients that are accumulated, only with the last microbatch.",
    ),
    _known(
        r"all elements of (input|target) should be between 0 and 1|Assertion `(input_val|target_val) >= zero",
        "Give binary_cross_entropy probabilities: a sigmoid before it, or binary_cross_entropy_with_logits in its "
        "place, which is also safe where a sigmoid rounds to 0 or 1. NaN are refused in the same words: see what else "
        "was found here.",
    ),
    _known(
        r"stack expects each tensor to be equal size",
        "The rows of a batch have different sizes: pad them to one in a collate_fn, or resize or cut them in the data "
        "set.",
    ),
    _known(
        r"Expected more than 1 value per channel when training",
        "A BatchNorm was given a batch of one row: leave out the last, smaller batch with drop_last=True, or use a "
        "norm that does not need the batch.",
    ),
    _known(
        r"DataLoader worker \(pid\(?s?\)? ?[\d, ]+\) (is killed by signal|exited unexpectedly)",
        "A worker of the loader was ended from outside, as a rule for want of memory: use fewer workers or smaller "
        "batches, and more shared memory (docker run --shm-size). With num_workers=0 its own exception is shown.",
    ),
    _known(
        r"No space left on device",
        "Free space on the disk that was written to, or keep fewer checkpoints: /dev/shm is such a disk as well.",
    ),
    _known(
        r"Too many open files",
        "Raise the limit of open files (ulimit -n), or have the loader's workers share memory by files.",
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
)  # fmt: skip
