"""wav2vec-style 1-D convolutions, weight-normed, CTC. FAULT at step 140: one utterance's transcript is longer than its frames,
so that CTC's loss is Inf (zero_infinity is off) and the gradients NaN. Cause: data (targets; the loss alone), step 140.
Right: look at the batch/targets of step 140 (or zero_infinity). Wrong: learning rate, weights, mask, a dtype's range."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [140, 140], "place": r"(loss|\(loss\)|)", "rank": 0,
          "wrong": ["learning rate", "[Mm]ask", "checkpoint", "bfloat16", "in float32"], "right": "batch|target|label|loss"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
VOCAB = 12

class Encoder(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        dims = [(1, 10, 5), (width, 3, 2), (width, 3, 2)]
        self.convs = nn.ModuleList(nn.Conv1d(i, width, k, s) for i, k, s in dims)
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in dims)
        self.context = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, VOCAB)
    def forward(self, wave):
        z = wave.unsqueeze(1)
        for conv, norm in zip(self.convs, self.norms):
            z = F.gelu(norm(conv(z)))
        h, _ = self.context(z.transpose(1, 2))
        return self.out(h).log_softmax(-1)

codes = torch.randn(VOCAB, 80)
def utterances(n=8, words=6):
    y = torch.randint(1, VOCAB, (n, words))
    return codes[y].reshape(n, -1) + 0.1 * torch.randn(n, words * 80), y

net = Encoder()
opt = torch.optim.Adam(net.parameters(), 1e-3)
watch = rangewatch.attach(net, opt)
for step in range(220):
    wave, text = utterances()
    lengths = torch.full((len(text),), text.shape[1])
    if step == 140:                                    # a mis-aligned manifest line: a whole paragraph for one clip
        text = torch.cat([text, torch.randint(1, VOCAB, (8, 60))], 1)
        lengths[3] = 66
    logp = net(wave).transpose(0, 1)
    frames = torch.full((wave.shape[0],), logp.shape[0])
    loss = F.ctc_loss(logp, text, frames, lengths)
    watch.log(loss=loss.item())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    opt.step()
